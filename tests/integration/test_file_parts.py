"""Files of a checkpoint as streams of bytes."""

import tracemalloc

import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from holdfast.adapters.shared.tensor_state.file_parts import InMemoryPart, TextPart, captured, write_parts
from holdfast.adapters.shared.tensor_state.safetensors_file import _NAMES, TensorsPart

DTYPES = tuple(_NAMES)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
TENSORS = st.dictionaries(st.text(min_size=1, max_size=12), st.tuples(SHAPES, st.sampled_from(DTYPES)), max_size=6)


@given(plan=TENSORS)
def test_tensors_are_the_bytes_that_the_format_s_own_package_writes(tmp_path_factory, plan):
    """For all names, shapes and dtypes the stream equals what safetensors writes, and it reads them back."""
    plan = {name: kind for name, kind in plan.items() if name != "__metadata__"}
    tensors = {
        name: torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype) for name, (shape, dtype) in plan.items()
    }
    folder = tmp_path_factory.mktemp("tensors")
    save_file(tensors, folder / "theirs", metadata={"format": "pt"})
    write_parts([TensorsPart("ours", tensors)], folder)
    assert (folder / "ours").read_bytes() == (folder / "theirs").read_bytes()
    read = load_file(folder / "ours")
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_a_part_of_a_larger_tensor_is_written_alone():
    """A view that is not contiguous, as a transposed matrix, is written in its own order."""
    whole = torch.arange(12.0).reshape(3, 4)
    view, copy = TensorsPart("a", {"t": whole.T[1:]}), TensorsPart("a", {"t": whole.T[1:].contiguous()})
    assert b"".join(view.chunks()) == b"".join(copy.chunks())


def test_streaming_tensors_takes_no_second_copy():
    """While 64 MiB are streamed, less than 1 MiB of Python's memory is taken."""
    part = TensorsPart("model", {"weight": torch.zeros(16 << 20)})
    tracemalloc.start()
    assert sum(memoryview(chunk).nbytes for chunk in part.chunks()) > 64 << 20
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_what_is_written_is_captured_by_value(tmp_path):
    """The files that a function writes come back as parts, those of folders too, and outlive its folder."""

    def write(folder):
        (folder / "inner").mkdir()
        (folder / "inner" / "a").write_bytes(b"one")
        (folder / "b").write_bytes(b"two")

    parts = captured(write)
    assert parts == [InMemoryPart("b", b"two"), InMemoryPart("inner/a", b"one")]
    write_parts([*parts, TextPart("c", "drei €")], tmp_path)
    assert (tmp_path / "inner/a").read_bytes() == b"one"
    assert (tmp_path / "c").read_text(encoding="utf-8") == "drei €"
