"""Images for training: decoded, cropped, resized and laid out in one pass, in the workers."""
