"""How long answers are now: a histogram that notices when they are no longer what they were."""

from collections import OrderedDict, deque
from collections.abc import Mapping

from policies.errors import ConfigError
from policies.estimators import ChangeTest
from policies.views import RequestView
from routing.sizing.length_counts import LengthCounts
from routing.sizing.length_prediction import FIELD, OutputEstimate, require_quantile
from routing.sizing.prompt_ngrams import NgramParams

WINDOW = 32
"""Answers among which a change is looked for; a histogram begins anew with those that came after it."""
SETTLING_ANSWERS = 32
"""Answers after a change in which predictions are off because of it, and say nothing of another one."""


class AdaptiveHistogram:
    """How many tokens will this request generate? As many as requests like it did since something last changed.

    Rule: answers are counted as :class:`routing.sizing.length_histogram.Log2Histogram` does it: all, by prompt class
    (the bit length of the prompt's token count), and by tenant and prompt class. The estimate is that of the pair's
    counts together with ``shrinkage_samples`` of its prompt class, in which as many of all are: with few answers of a
    pair it is mostly its parents'. Each prompt class and each pair forgets what came before a change of its own
    lengths (:class:`policies.estimators.ChangeTest`). A change of what answers are in proportion to what was expected
    of them, whoever's they are, makes all of them forget: many that each saw little have seen it together.

    State: one histogram, up to 32 last answers and one test each for all, for each prompt class, and for at most
    ``max_keys`` pairs, of which the one that went longest without an answer is dropped.

    Complexity: some ten microseconds for each prediction and each answer, in proportion to the length buckets.

    Failure mode: it can't tell two requests of one size and one tenant apart. A change is noticed when answers show it,
    so what arrives within an answer's time is still predicted by what was. Lengths that come in bursts of a kind within
    one pair look like changes, and so does a newcomer who sends most of the requests: then all forget more than they
    need. ``false_alarm_fraction`` bounds alarms for independent lengths.
    Requests that were cancelled teach it nothing.

    Source: the likelihood ratio of two samples with a Dirichlet prior for each; shrinkage as in James and Stein, with a
    fixed weight.

    Args:
        quantile: Of ``high_tokens``, 0.5 or more.
        half_life_requests: After so many further answers in the same histogram, one counts half.
        min_samples: Until it has seen so many answers in all it says ``max_output_tokens``.
        shrinkage_samples: Answers by which a parent counts.
        false_alarm_fraction: Alarms of each test over answers while nothing changes, at the most.
        max_keys: Most pairs of tenant and prompt class.
        ngrams: How the host is to hash prompts for the event log, although nothing here looks at them; ``None``: not
            at all.

    Raises:
        ConfigError: A number is out of its range.
    """

    def __init__(
        self,
        *,
        quantile: float = 0.9,
        half_life_requests: float = 200.0,
        min_samples: int = 30,
        shrinkage_samples: float = 10.0,
        false_alarm_fraction: float = 1e-4,
        max_keys: int = 4096,
        ngrams: dict[str, int] | None = None,
    ) -> None:
        require_quantile(quantile)
        _check("half_life_requests", half_life_requests, 1.0, 1e9)
        _check("min_samples", min_samples, 1, 1e9)
        _check("shrinkage_samples", shrinkage_samples, 0.0, 1e9)
        _check("false_alarm_fraction", false_alarm_fraction, 1e-12, 0.1)
        _check("max_keys", max_keys, 1, 1e9)
        self.wants_ngrams = None if ngrams is None else NgramParams(**ngrams)
        self._quantile = quantile
        self._growth = 2.0 ** (1.0 / half_life_requests)
        self._min_samples = min_samples
        self._shrinkage_samples = shrinkage_samples
        self._false_alarm_fraction = false_alarm_fraction
        self._max_keys = max_keys
        self._num_answers = self._changed_at = self._settled_at = 0
        self._surprises = ChangeTest(false_alarm_fraction, WINDOW)
        self._num_changes = {"all": 0, "own": 0}
        self._everything = _Answers(self._growth)
        self._by_prompt: dict[int, _Answers] = {}
        self._by_pair: OrderedDict[tuple[str, int], _Answers] = OrderedDict()

    def predict(self, request: RequestView) -> OutputEstimate:
        most = request.max_output_tokens
        if self._num_answers < self._min_samples:
            return OutputEstimate(most, most)
        mean, high = self._counts_for(request).mean_and_quantile(most, self._quantile)
        tokens = max(1, round(mean))
        return OutputEstimate(tokens, max(tokens, high))

    def observe(self, request: RequestView, output_tokens: int) -> None:
        length = max(1, output_tokens)
        expected = self.predict(request).tokens
        was_truncated = length >= request.max_output_tokens
        prompt_class = request.prompt_tokens.bit_length()
        self._num_answers += 1
        self._everything.add(length, was_truncated, self._num_answers)
        for group in (self._of_prompt(prompt_class), self._of_pair(request.tenant, prompt_class)):
            group.forget_before(self._changed_at)
            self._num_changes["own"] += group.add(length, was_truncated, self._num_answers)
        if self._num_answers > max(self._settled_at, self._min_samples):
            self._look(length / expected)

    def quantile_tokens(self, request: RequestView, level: float) -> int:
        """Any quantile, at least 1 and at most ``max_output_tokens``."""
        most = request.max_output_tokens
        if self._num_answers < self._min_samples:
            return most
        return self._counts_for(request).mean_and_quantile(most, level)[1]

    def gauges(self) -> Mapping[str, float]:
        """For metrics: changes that were noticed, of all lengths and of a prompt class's or a pair's own."""
        return {f"length_changes_total:{which}": float(count) for which, count in self._num_changes.items()}

    def _look(self, surprise: float) -> None:
        """Whether answers in proportion to what was expected of them are what they were."""
        if num_since := self._surprises.add(surprise):
            self._num_changes["all"] += 1
            self._changed_at = self._num_answers - num_since + 1
            self._settled_at = self._num_answers + SETTLING_ANSWERS
            self._surprises.restart()
            self._everything.forget_before(self._changed_at)

    def _counts_for(self, request: RequestView) -> LengthCounts:
        counts = self._everything.counts
        prompt_class = request.prompt_tokens.bit_length()
        for group in (self._by_prompt.get(prompt_class), self._by_pair.get((request.tenant, prompt_class))):
            if group is not None:
                group.forget_before(self._changed_at)
                counts = group.counts.shrunk_to(counts, self._shrinkage_samples)
        return counts

    def _group(self) -> "_Answers":
        return _Answers(self._growth, ChangeTest(self._false_alarm_fraction, WINDOW))

    def _of_prompt(self, prompt_class: int) -> "_Answers":
        found = self._by_prompt.get(prompt_class)
        if found is None:
            found = self._by_prompt[prompt_class] = self._group()
        return found

    def _of_pair(self, tenant: str, prompt_class: int) -> "_Answers":
        pair = (tenant, prompt_class)
        found = self._by_pair.get(pair)
        if found is not None:
            self._by_pair.move_to_end(pair)
            return found
        found = self._by_pair[pair] = self._group()
        if len(self._by_pair) > self._max_keys:
            self._by_pair.popitem(last=False)
        return found


class _Answers:
    """The answers of a group of requests since they last changed.

    Args:
        growth: By what each one weighs more than the one before it.
        test: Of their lengths; ``None``: others say when they have changed.
    """

    __slots__ = ("_begun_at", "_growth", "_latest", "_test", "counts")

    def __init__(self, growth: float, test: ChangeTest | None = None) -> None:
        self.counts = LengthCounts()
        self._growth = growth
        self._test = test
        self._latest: deque[tuple[int, int, bool]] = deque(maxlen=WINDOW)
        self._begun_at = 0

    def add(self, length: int, was_truncated: bool, number: int) -> bool:
        """Counts an answer; whether it is by this one that a change is noticed."""
        self._latest.append((number, length, was_truncated))
        self.counts.add(length, was_truncated, self._growth)
        num_since = self._test.add(length) if self._test is not None else 0
        if num_since:
            self._begin_at(self._latest[-num_since][0])
        return num_since > 0

    def forget_before(self, number: int) -> None:
        """Only the last answers from this number on count from now on."""
        if number > self._begun_at:
            self._begin_at(number)
            if self._test is not None:
                self._test.restart()

    def _begin_at(self, number: int) -> None:
        self._begun_at = number
        self._latest = deque((each for each in self._latest if each[0] >= number), maxlen=WINDOW)
        self.counts = LengthCounts()
        for _, length, was_truncated in self._latest:
            self.counts.add(length, was_truncated, self._growth)


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{FIELD}.params.{name}", value, f"{least:g} to {most:g}")
