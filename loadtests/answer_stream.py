"""Reads one streamed completion: server-sent events in, when tokens came and how the stream ended out."""

from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode


class AnswerStream:
    """One answer as it arrives.

    A token is there when its event carries text or, where the server was asked for them, token ids: text may be held
    back in the middle of a character. An event with neither, such as a chat's role, is no token.

    Attributes:
        first_s: When the first token came; NaN while there is none.
        last_s: When the last token so far came; NaN likewise.
        longest_gap_s: The longest time between two of them; NaN while there are not two.
        events: Events that carried tokens.
        token_ids: Token ids that came, where the server was asked for them.
        output_tokens: As the server's usage says; 0 until it does.
        cached_tokens: Prompt tokens found in a prefix cache, as the usage says.
        stages_s: Seconds by stage that the service says that it spent; empty where it says nothing.
        error: The body of an error event; ``None`` without one.
        is_done: Whether the stream has said that it is complete.
    """

    def __init__(self) -> None:
        self.first_s = self.last_s = self.longest_gap_s = float("nan")
        self.events = self.token_ids = self.output_tokens = self.cached_tokens = 0
        self.stages_s: dict[str, float] = {}
        self.error: dict[str, Any] | None = None
        self.is_done = False
        self._rest = b""

    def has_length(self, num_tokens: int) -> bool:
        """Whether so many tokens came: as the usage says, and by their ids where there were any."""
        return self.output_tokens == num_tokens and self.token_ids in (0, num_tokens)

    def feed(self, data: bytes, now_s: float) -> None:
        """Takes in bytes as they came from the connection; an event may be split anywhere."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take_in(line[5:].strip(), now_s)

    def _take_in(self, event: bytes, now_s: float) -> None:
        if event == b"[DONE]":
            self.is_done = True
            return
        body = _decode(event)
        if "error" in body:
            self.error = body["error"]
            return
        if any(_has_tokens(choice) for choice in body["choices"]):
            self._time(now_s)
            self.events += 1
            self.token_ids += sum(len(choice.get("token_ids") or ()) for choice in body["choices"])
        self._count(body)

    def _time(self, now_s: float) -> None:
        if self.events:
            gap_s = now_s - self.last_s
            self.longest_gap_s = gap_s if self.events == 1 else max(gap_s, self.longest_gap_s)
        else:
            self.first_s = now_s
        self.last_s = now_s

    def _count(self, body: dict[str, Any]) -> None:
        if "spillway" in body:
            self.stages_s = body["spillway"].get("latency_budget_s", {})
        usage = body.get("usage")
        if usage:
            self.output_tokens = usage["completion_tokens"]
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def _has_tokens(choice: dict[str, Any]) -> bool:
    text = choice["text"] if "text" in choice else choice.get("delta", {}).get("content")
    return bool(text or choice.get("token_ids"))
