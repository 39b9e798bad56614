"""SIGINT and SIGTERM during training: finish the step, save, and print the command that resumes.

``stop_on_signals`` is called by the commands only; a Python program that calls our functions keeps its own handlers.
While a command is stopping, another signal ends it at once.
"""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class Stopped(BaseException):
    """A signal ended the run. Not an Exception, so only the command catches it."""

    def __init__(self, number: int, kept: str = ""):
        self.code = 128 + number
        """Exit code: 130 for SIGINT, 143 for SIGTERM."""
        super().__init__(f"stopped by {signal.Signals(number).name}{kept}; resume with: {resume_command()}")


@dataclass
class _Signals:
    deferred: bool = False
    received: int | None = None
    stopping: bool = False
    """Whether ``Stopped`` was raised."""
    resume_option: str = "--resume"
    """Option of the command that resumes. "": the same command resumes."""


_signals = _Signals()


def stop_on_signals(resume_option: str = "--resume") -> None:
    """From now on, SIGINT and SIGTERM raise ``Stopped``: at once, or at the end of the step inside ``deferred``."""
    _signals.resume_option = resume_option
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _handle)


@contextmanager
def deferred() -> Iterator[None]:
    """Inside this block, a signal only sets ``received``. A second Ctrl-C still stops at once."""
    _signals.deferred, _signals.received = True, None
    try:
        yield
    finally:
        _signals.deferred = False


def received() -> int | None:
    """The number of the signal that arrived inside ``deferred``."""
    return _signals.received


def resume_command() -> str:
    if "WORLD_SIZE" in os.environ:  # torchrun's own options are not known here
        return "the same torchrun command, with --resume"
    option = _signals.resume_option
    return shlex.join(["deberta", *(each for each in sys.argv[1:] if each != option), *filter(None, [option])])


def let_signals_end_the_process() -> None:
    """The work is over: from now on, a signal ends the process without a word."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.SIG_DFL)


def _handle(number: int, frame: FrameType | None) -> None:
    distributed = "WORLD_SIZE" in os.environ  # torchrun passes on the Ctrl-C that its processes have already received
    if _signals.stopping:
        if distributed:
            return
        os._exit(128 + number)
    again = _signals.received is not None and number == signal.SIGINT and not distributed
    _signals.received = _signals.received or number
    if again or not _signals.deferred:
        _signals.stopping = True
        raise Stopped(number)
