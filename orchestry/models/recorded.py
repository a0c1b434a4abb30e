"""Replays a run's journal: the same requests get the same answers, free and without a network.

Requests are matched by digest; the provider and address that answered don't matter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestry.core.errors import ConfigError, ProviderError
from orchestry.core.types import Completion, Request
from orchestry.models.request_key import digest_of_key, request_digest
from orchestry.store import journal

JOURNAL = "journal.jsonl"


class RecordedProvider:
    """The answers of one journal. If a request was answered twice, the first counts; a failure
    counts only if no answer followed."""

    name = "recorded"
    deterministic = True
    cacheable = False  # a recording is a cache
    bills_unanswered = False
    slots: int | None = None

    def __init__(self, recording: Path) -> None:
        self.path = recording / JOURNAL if recording.is_dir() else recording
        if not self.path.is_file():
            raise ConfigError(
                f"there is no recording at {self.path}: name a run directory, or its {JOURNAL}, "
                "in provider.recording"
            )
        self._answers: dict[str, Completion] = {}
        self.used = list[journal.Used]()
        """What the agents' tools answered."""
        opened: journal.Opened | None = None
        for event in journal.read(self.path):
            if isinstance(event, journal.Opened):
                opened = opened or event
            elif isinstance(event, journal.Used):
                self.used.append(event)
            elif isinstance(event, journal.Answered):
                answer = event.completion.model_copy(update={"usd": 0.0})
                key = digest_of_key(event.key)
                if key not in self._answers or self._answers[key].failed:
                    self._answers[key] = answer
        if opened is None:
            raise ConfigError(f"{self.path} records no run: name another in provider.recording")
        self.model = opened.model
        self.base_url = f"recorded:{opened.provider}"

    embeds = True

    async def __aenter__(self) -> RecordedProvider:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Holds nothing open."""

    async def complete(
        self, request: Request, *, shared: bool = False, started: Callable[[], None] | None = None
    ) -> Completion:
        """The recorded answer; raises a permanent ProviderError if there is none."""
        answer = self._answers.get(request_digest(request))
        if answer is None:
            raise self._missing(request)
        if started is not None:
            started()
        return answer

    def input_bound(self, request: Request) -> int:
        """The recorded count, or 0 for a request that will be refused."""
        answer = self._answers.get(request_digest(request))
        return answer.input_tokens if answer else 0

    def leads(self, request: Request) -> bool:
        """Always False: nothing is billed."""
        return False

    def _missing(self, request: Request) -> ProviderError:
        return ProviderError(
            f"{self.path} holds no answer to {request.agent}'s request (purpose "
            f"'{request.purpose}', model '{request.model}', sample {request.sample_index}): use "
            "the task, split, seed, episodes, model and agents, search.*, sampling.*, judge.*, "
            "credit.* and behaviors.* of the recorded run, which --config RUN/config.yaml gives; "
            f"{len(self._answers)} answers are recorded",
            transient=False,
            billed=False,
        )
