"""Entry points, one file each: thin shells around `sweep` that read a command line and print."""

import os

# Programs that jax kept are read back with an alarm about processor features that only tune (`prefer-no-gather`), once
# per program and feature. They are kept per kind of processor (`_app.keep_compiled`), so there is nothing to say.
# jax's own errors come as exceptions. Read when jaxlib is loaded, hence here.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
