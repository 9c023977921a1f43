"""Order samplers: callables that give each epoch its order."""
