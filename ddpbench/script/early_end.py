"""Ends the script before its own end, at a step of an optimizer: there all ranks are at the same step, and none waits for another.

The script gets a ``SystemExit`` in its main thread, or in the one that trains, so that its ``finally`` blocks and atexit functions run. It
is never raised out of the iterator of a loader, which another thread may call: the main thread would wait for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LEAVE_AFTER_S = 30.0
"""Seconds that a script gets which catches the exception and trains on."""


class EarlyEnd(SystemExit):
    """Raised in the script, in place of its further training. Its exit code is 0."""

    def __init__(self) -> None:
        super().__init__(0)


class ScriptEnder:
    """Raises ``EarlyEnd`` at the next step of an optimizer after ``request_end``, and again at every later one.

    If the script trains on nevertheless, ``leave`` is called ``LEAVE_AFTER_S`` after the first time, in a thread. It ends the process.
    """

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._is_requested = False
        self._raised_s: float | None = None
        self._is_leaving = self._is_ending = False

    def request_end(self) -> None:
        """End the script at the next step of an optimizer. May be called in any thread."""
        self._is_requested = True

    @property
    def has_raised(self) -> bool:
        """Whether the script has got its ``EarlyEnd``."""
        return self._raised_s is not None

    @property
    def is_ending(self) -> bool:
        """Whether the main thread has got it: after another one, the script may wait for what that does not do any more."""
        return self._is_ending

    def end_if_requested(self, trains_here: bool) -> None:
        """Raise ``EarlyEnd`` if the end has been requested. For the post hook of optimizers.

        ``trains_here`` says that the calling thread is the one that trains. Others than that and the main one go on.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if not self._is_requested or not (is_main or trains_here):
            return
        now_s = time.monotonic()
        self._is_ending |= is_main
        if self._raised_s is None:
            self._raised_s = now_s
        elif not self._is_leaving:
            self._is_leaving = True
            timer = threading.Timer(max(0.0, self._raised_s + LEAVE_AFTER_S - now_s), self._leave)
            timer.daemon = True  # a script that does end need not wait for it
            timer.start()
        raise EarlyEnd if is_main else SystemExit(0)  # threading prints the traceback of any other exception


def mute_daemon_threads() -> None:
    """Print no exception of a daemon thread any more. Those of a script that was ended may read from workers that are gone."""
    print_exception = threading.excepthook

    def print_unless_daemon(args: threading.ExceptHookArgs) -> None:
        if args.thread is None or not args.thread.daemon:
            print_exception(args)

    threading.excepthook = print_unless_daemon


class StepLimit:
    """Requests the end of the script at the update that follows the ``steps``-th batch of its training loader.

    Some loops fetch batches before they train on them: Accelerate one, to recognise the last. With k batches per update, the first update
    then comes after k + 1 batches and the second after 2 k + 1. Until the second, one batch is taken to be ahead if there is more than one.
    """

    def __init__(self, steps: int, ender: ScriptEnder) -> None:
        self._steps, self._ender = steps, ender
        self._received_at_updates: list[int] = []  # the first two with different numbers

    def count_update(self, received: int, is_last_of_step: bool) -> None:
        """An optimizer has made its step after ``received`` batches. A step may need further ones, such as that of a second model."""
        first_two = self._received_at_updates
        if len(first_two) < 2 and received not in first_two:
            first_two.append(received)
        ahead = max(0, 2 * first_two[0] - first_two[1]) if len(first_two) == 2 else int(received > 1)
        if is_last_of_step:
            self.end_after(received - ahead)

    def end_after(self, steps: int) -> None:
        """The script has made so many steps."""
        if steps >= self._steps:
            self._ender.request_end()
