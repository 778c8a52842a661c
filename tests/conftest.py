"""What holds for every test."""

from __future__ import annotations

import signal

# Started in the background by a script, pytest inherits SIGINT as ignored, and so would every process that a test
# starts and interrupts. A handler is not inherited: they begin with the default.
signal.signal(signal.SIGINT, signal.default_int_handler)
