"""Slow twins of the text kernels: the definition."""


def intern(words: list[str | None]) -> tuple[list[int], list[str]]:
    seen: dict[str, int] = {}
    codes = [-1 if w is None else seen.setdefault(w, len(seen)) for w in words]
    return codes, list(seen)
