"""How much KV will be in use at the same time."""

from dataclasses import dataclass

from policies.estimators.fading import FadingMean, FadingRate
from policies.views import RequestView


@dataclass(slots=True, eq=False)
class KvUse:
    """A request that uses KV or will, and when it began; ``None``: not yet."""

    request: RequestView
    began_s: float | None = None


class KvForecast:
    """The most KV tokens that requests hold at any one time, each growing from its prompt to its expected length.

    A request holds its prompt when it begins, a token more with each that it emits, and nothing once it has emitted as
    many as are expected. One that has emitted more is expected to emit as many again. All emit equally fast, as fast as
    those that ended of late, their prompts' time included; those that have not begun begin now. With ``r`` tokens from
    now, the peak is the largest ``sum(held + r)`` over requests with ``r`` or more to come, at one of their ends.

    Args:
        memory_s: Time in which what was seen of an ended request's speed falls to 1/e.
    """

    def __init__(self, memory_s: float) -> None:
        self._duration_s, self._output_tokens = FadingMean(memory_s), FadingMean(memory_s)
        self._released_tokens = FadingRate(memory_s)
        self._uses: dict[KvUse, None] = {}

    def enter(self, request: RequestView) -> KvUse:
        """A request has been let in; what is returned stands for it until it ends."""
        use = KvUse(request)
        self._uses[use] = None
        return use

    def begin(self, use: KvUse, now_s: float) -> None:
        """It has been sent."""
        use.began_s = now_s

    def end(self, use: KvUse, output_tokens: int, now_s: float) -> None:
        """It holds nothing any more; ``output_tokens`` is 0 where it was not answered in full."""
        self._uses.pop(use, None)
        if use.began_s is None:
            return
        self._released_tokens.add(use.request.kv_tokens, now_s)
        if output_tokens:
            self._duration_s.add(now_s - use.began_s, now_s)
            self._output_tokens.add(output_tokens, now_s)

    def fits(
        self, request: RequestView, peaks_tokens: float, room_tokens: float, *, until_s: float, now_s: float
    ) -> bool:
        """Whether a request finds room beside the others.

        What is cheap is asked first: the sum of peaks, less what ends until then at the rate of late.

        Args:
            request: The request.
            peaks_tokens: Sum of everybody's own peaks, of other gateways' requests and its own too.
            room_tokens: KV tokens that may be in use.
            until_s: Until it begins.
            now_s: Now.
        """
        if peaks_tokens - self._released_tokens.per_s_at(now_s) * until_s <= room_tokens:
            return True
        return peaks_tokens * self.simultaneous_fraction(request, now_s) <= room_tokens

    def peak_tokens(self, request: RequestView, now_s: float) -> float:
        """The peak when this request begins now; O(n log n) in the requests that are there."""
        token_s = self._duration_s.at(now_s) / max(self._output_tokens.at(now_s), 1e-9)
        courses = [_course(each, token_s, now_s) for each in (*self._uses, KvUse(request))]
        courses.sort(reverse=True)
        peak, held = 0.0, 0.0
        for number, (to_come, its) in enumerate(courses, start=1):
            held += its
            peak = max(peak, held + number * to_come)
        return peak

    def simultaneous_fraction(self, request: RequestView, now_s: float) -> float:
        """That peak over the sum of everybody's own peaks, which holds for requests of other gateways likewise."""
        own_peaks = sum(each.request.kv_tokens for each in self._uses) + request.kv_tokens
        return min(1.0, self.peak_tokens(request, now_s) / own_peaks)


def _course(use: KvUse, token_s: float, now_s: float) -> tuple[float, float]:
    """Tokens that a request is yet to emit, and those that it holds now."""
    request, most = use.request, use.request.max_output_tokens
    expected = float(request.geometry.output_tokens or most)
    if use.began_s is None or not token_s:
        return expected, request.prompt_tokens
    emitted = min(most, (now_s - use.began_s) / token_s)
    if emitted >= expected:
        expected = min(most, 2.0 * emitted)
    return expected - emitted, request.prompt_tokens + emitted
