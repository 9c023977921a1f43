from fastiter._fetch.token_rows import RowPlanner, TokenSource

MOST_TOKENS: int
FIELDS: tuple[str, ...]

class TokenColumn:
    def __init__(
        self,
        planner: RowPlanner,
        field: str,
        *,
        width: int | None,
        shifts: bool,
        left: bool,
        pad: int,
        ignored: int,
        aligned: TokenSource | None = None,
        multiple: int = 1,
    ) -> None: ...
