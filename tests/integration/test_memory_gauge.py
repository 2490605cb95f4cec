import mmap
import subprocess
import sys

import pytest

from holdfast.adapters.shared.device.memory_gauge import HostGauge


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resets the peak as Linux does")
def test_the_peak_is_that_since_the_reset():
    """What a trial took shows, and does not once the peak is looked for anew."""
    gauge = HostGauge(0.9)
    gauge.reset()
    before = gauge.peak()
    with mmap.mmap(-1, 200_000_000) as taken:  # what malloc gets may stay with the process
        for _ in range(200):
            taken.write(bytes(1_000_000))
        assert gauge.peak() - before > 150_000_000
    gauge.reset()
    assert gauge.peak() - before < 100_000_000


def test_a_share_of_what_is_free_may_be_taken():
    """The bound is what is held and a share of what is left."""
    before, half, after = (HostGauge(share).most() for share in (1.0, 0.5, 1.0))
    held = HostGauge(1.0).held()
    least, most = sorted((before, after))  # others take memory meanwhile
    assert held < half < most
    assert 0.8 * (least - held) < 2 * (half - held) < 1.2 * (most - held)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell no peak of a process alone")
def test_the_peak_of_a_process_is_its_own():
    """A process that a larger one started does not take the other's peak for its own."""
    code = (
        "import subprocess, sys; held = bytearray(b'x' * (512 << 20)); "
        "subprocess.run([sys.executable, '-c', 'from holdfast.adapters.shared.device.memory_gauge import memory_bytes; "
        'print(memory_bytes("cpu"))\'], check=True, close_fds=False)'
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert 0 < int(done.stdout) < 512 << 20
