"""``python -m holdfast.torchrun``: torchrun, which ends with the exit code of the process that failed first."""

from holdfast.bootstrap.process.torchrun import main

main()
