"""The words in which limits of the machine are reported."""

from holdfast.bootstrap.doctor.device_checks import check_threads


def test_processors_and_processes_are_counted():
    """Each is counted in the singular or in the plural that it has."""
    assert check_threads(4, None, 2).detail == "4 processors for 2 processes"
    assert check_threads(1, None, 1).detail == "1 processor for 1 process"
