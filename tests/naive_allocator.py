"""PyTorch's caching allocator, plainly: memory is a list of spans, which is searched and merged from end to end."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1024 * 1024


@dataclass
class Span:
    segment: int
    pool: tuple[int, bool]  # stream, small?
    begin: int
    end: int
    state: str = "free"  # or "used", "waiting", "unmapped"
    block: int = -1
    asked: int = 0

    @property
    def length(self) -> int:
        return self.end - self.begin


@dataclass
class NaiveAllocator:
    capacity: float = float("inf")
    max_split: float = float("inf")
    expandable: bool = False
    spans: list[Span] = field(default_factory=list)
    segments: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)  # addresses: begin, end
    lowest: int = 2**60
    reserved: int = 0

    def total(self, *states: str) -> int:
        return sum(s.length for s in self.spans if s.state in states)

    def requested(self) -> int:
        return sum(s.asked for s in self.spans if s.state in ("used", "waiting"))

    def alloc(self, block: int, asked: int, stream: int) -> Span | None:
        size = -(-asked // 512) * 512
        pool = (stream, size <= MIB)
        span = self.fitting(size, pool) or self.fresh(size, pool)
        if span is None and self.max_split < float("inf") and self.return_oversized(size, pool):
            span = self.fresh(size, pool)
        if span is None:
            self.empty_cache()
            span = self.fresh(size, pool)
        if span is None:
            return None
        rest = span.length - size
        if rest >= 512 if pool[1] or self.expandable else rest > MIB and size < self.max_split:
            at = self.spans.index(span)
            self.spans.insert(at + 1, Span(span.segment, pool, span.begin + size, span.end))
            span.end = span.begin + size
        span.state, span.block, span.asked = "used", block, asked
        return span

    def fitting(self, size: int, pool: tuple[int, bool]) -> Span | None:
        fits = [s for s in self.spans if s.state == "free" and s.pool == pool and s.length >= size]
        fits.sort(key=lambda s: (s.length, s.begin))
        if not fits:
            return None
        found = fits[0]
        if self.expandable:
            for other in fits[1:]:
                if self.grown(other) >= self.grown(found):
                    break
                found = other
        if size < self.max_split <= found.length or (size >= self.max_split and found.length >= size + 20 * MIB):
            return None
        return found

    def grown(self, span: Span) -> int:
        after = next((s for s in self.spans if s.segment == span.segment and s.begin == span.end), None)
        return span.length + (after.length if after and after.state == "unmapped" else 0)

    def fresh(self, size: int, pool: tuple[int, bool]) -> Span | None:
        if self.expandable:
            return self.mapped(size, pool)
        if pool[1]:
            size = 2 * MIB
        elif size < 10 * MIB:
            size = 20 * MIB
        else:
            size = -(-size // (2 * MIB)) * 2 * MIB
        if self.reserved + size > self.capacity:
            return None
        self.segments += 1
        begin = self.segment_address(size)
        self.spans.append(Span(self.segments, pool, begin, begin + size))
        self.reserved += size
        return self.spans[-1]

    def segment_address(self, size: int) -> int:
        fits = [gap for gap in sorted(self.gaps) if gap[1] - gap[0] >= size]
        if not fits:
            piece = -(-size // (32 * MIB)) * 32 * MIB
            self.lowest -= piece
            self.add_gap(self.lowest, self.lowest + piece)
            fits = [min(self.gaps)]
        self.gaps.remove(fits[0])
        self.add_gap(fits[0][0] + size, fits[0][1])
        return fits[0][0]

    def add_gap(self, begin: int, end: int) -> None:
        """All addresses of gaps, 2 MiB each, and from these the gaps again."""
        pages = sorted(p for gap in [*self.gaps, (begin, end)] for p in range(gap[0], gap[1], 2 * MIB))
        begins = [p for i, p in enumerate(pages) if i == 0 or pages[i - 1] + 2 * MIB != p]
        ends = [p + 2 * MIB for i, p in enumerate(pages) if i == len(pages) - 1 or pages[i + 1] != p + 2 * MIB]
        self.gaps = list(zip(begins, ends, strict=True))

    def mapped(self, size: int, pool: tuple[int, bool]) -> Span | None:
        granule = (2 if pool[1] else 20) * MIB
        if not any(s.pool == pool for s in self.spans):
            self.segments += 1
            self.spans.append(Span(self.segments, pool, 0, 10**7 * granule, "unmapped"))
        own = sorted((s for s in self.spans if s.pool == pool), key=lambda s: s.begin)
        for i, first in enumerate(own):
            run = own[i : next((j for j in range(i, len(own)) if own[j].state in ("used", "waiting")), len(own))]
            has_hole = run and ("unmapped" in (run[0].state, *(s.state for s in run[1:2])))
            if has_hole and sum(s.length for s in run) >= size:
                begin = first.begin
                break
        for hole in [s for s in run if s.state == "unmapped"]:
            missing = size - (hole.begin - begin)
            if missing <= 0:
                break
            more = -(-min(missing, hole.length) // granule) * granule
            if self.reserved + more > self.capacity:
                self.merge()
                return None
            self.reserved += more
            self.spans.append(Span(hole.segment, pool, hole.begin, hole.begin + more))
            hole.begin += more
        self.merge()
        return next(s for s in self.spans if s.pool == pool and s.begin == begin)

    def free(self, block: int) -> None:
        span = next(s for s in self.spans if s.block == block)
        span.state, span.block = "free", -1
        self.merge()

    def wait(self, block: int) -> None:
        next(s for s in self.spans if s.block == block).state = "waiting"

    def merge(self) -> None:
        merged: list[Span] = []
        for span in sorted((s for s in self.spans if s.length), key=lambda s: (s.segment, s.begin)):
            last = merged[-1] if merged else None
            if last and last.segment == span.segment and last.state == span.state in ("free", "unmapped"):
                last.end = span.end
            else:
                merged.append(span)
        self.spans = merged

    def return_oversized(self, size: int, pool: tuple[int, bool]) -> bool:
        wanted = max(size, self.max_split)
        own = sorted((s for s in self.spans if s.state == "free" and s.pool == pool), key=lambda s: (s.length, s.begin))
        enough = [s for s in own if s.length >= wanted]
        if enough:
            self.give_back(enough[0])
            return True
        total = 0
        for span in reversed(own):
            if total >= wanted or span.length < self.max_split:
                break
            total += span.length
            self.give_back(span)
        return total >= wanted

    def give_back(self, span: Span) -> None:
        self.reserved -= span.length
        self.spans.remove(span)
        self.add_gap(span.begin, span.end)

    def empty_cache(self) -> None:
        for span in self.spans:
            if span.state == "waiting":
                span.state, span.block = "free", -1
        self.merge()
        for span in [s for s in self.spans if s.state == "free"]:
            if not self.expandable:
                if sum(s.segment == span.segment for s in self.spans) == 1:
                    self.give_back(span)
                continue
            granule = (2 if span.pool[1] else 20) * MIB
            low, high = -(-span.begin // granule) * granule, span.end // granule * granule
            if low < high:
                self.spans += [Span(span.segment, span.pool, low, high, "unmapped"),
                               Span(span.segment, span.pool, high, span.end)]  # fmt: skip
                span.end = low
                self.reserved -= high - low
        self.merge()
