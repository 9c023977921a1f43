from typing_extensions import Buffer

START_ERROR_BYTES: int
LOADING: int
STARTING: int
FINISHING: int

PACKED_EXAMPLE: int
PACKED_ERROR: int
PACKED_FIELD: int
PACKED_RESULT: int
PACKED_FAILURE: int
WHOLE_BATCH: int

ROW_ERROR: int
ROW_POISON: int

CONVERTED_FIELDS: int
CONVERTED_OBJECT: int
CONVERTER_ERROR: int
FINISH_POISON: int

def checksum(data: Buffer, start: int, stop: int, seed: int) -> int: ...
