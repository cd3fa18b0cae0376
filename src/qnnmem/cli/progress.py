"""A progress bar on the terminal for steps that take more than a second."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from qnnmem.cli.screen import is_coloured
from qnnmem.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from qnnmem.planner import Progress


class ProgressBar:
    """Progress bar for the current step, after one second and only on a terminal.

    Without colour, a single plain line is printed instead.
    """

    def __init__(self, doing: str) -> None:
        self._doing, self._closed = doing, False
        self._bar: Bar | None = None
        self._colour = is_coloured(sys.stderr)  # read here: the timer's thread has no click context
        self._lock = threading.Lock()
        self._timer = threading.Timer(1.0, self._start)
        self._timer.daemon = True

    def __enter__(self) -> ProgressBar:
        if sys.stderr.isatty():
            self._timer.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._timer.cancel()
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
            self._closed = True  # a timer that fires now must not start a bar

    def __call__(self, progress: Progress) -> None:
        """Show a progress report of the planner."""
        from qnnmem.verbs import progress_words

        self.say(progress_words(progress))

    def say(self, doing: str) -> None:
        """Change the text next to the progress bar."""
        with self._lock:
            self._doing = doing
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], description=doing)

    def note(self, line: str) -> None:
        """Print a remark on standard error."""
        from qnnmem.cli.streams import note

        note(line)

    def _start(self) -> None:
        if self._colour:
            self._draw()
            return
        from qnnmem.cli.streams import note

        with self._lock:
            if not self._closed:  # without colour, a bar is unwanted, too: print the line once
                note(f"note: {printable(self._doing)}")

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        with self._lock:
            if self._closed:
                return
            self._bar = Bar(
                BarColumn(bar_width=24),
                TimeElapsedColumn(),
                TextColumn("{task.description}", markup=False),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.add_task(self._doing, total=None)
            self._bar.start()
