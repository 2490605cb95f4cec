"""Slices of tensors, files of them, and what is made of those."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.shared.decoder.network import to_huggingface
from holdfast.adapters.shared.tensor_state.consolidation import ConsolidatedTensors, ShardLayoutPart
from holdfast.adapters.shared.tensor_state.local_shards import Slice, TensorBlock
from holdfast.adapters.shared.tensor_state.safetensors_file import TensorsPart
from holdfast.adapters.shared.tensor_state.sharded_tensors import ShardLayout, SlicedTensors, TensorFile, slices_part
from holdfast.domain.errors import StateError

GENERATOR = torch.Generator().manual_seed(3)


def bytes_of(part):
    return b"".join(part.chunks())


def opened(files):
    """Return a function that opens the files of these bytes."""
    return lambda name: TensorFile(name, partial(read, files, name))


def read(files, name, offset, size):
    return files[name][offset : offset + size]


def cut(tensors, cuts):
    """Return files in which each tensor is cut at the shares ``cuts`` of its elements."""
    files = {}
    for number, (low, high) in enumerate(zip((0.0, *cuts), (*cuts, 1.0), strict=True)):
        slices = {}
        for name, tensor in tensors.items():
            begin, end = (int(share * tensor.numel()) for share in (low, high))
            if begin < end:
                slices[name] = Slice(tensor.shape, TensorBlock(begin, end - begin), tensor.reshape(-1)[begin:end])
        files[f"part-{number}"] = bytes_of(slices_part(f"part-{number}", slices))
    return files


TENSORS = {
    "weight": torch.randn(7, 5, generator=GENERATOR),
    "half": torch.randn(6, generator=GENERATOR).bfloat16(),
    "step": torch.tensor(3.0),
    "bytes": torch.arange(12, dtype=torch.uint8).view(3, 4),
}
SHARES = st.lists(st.floats(0, 1), max_size=4).map(sorted)


@settings(deadline=None, max_examples=60)
@given(cuts=SHARES, name=st.sampled_from(sorted(TENSORS)), data=st.data())
def test_any_range_is_read_out_of_any_slices(cuts, name, data):
    """However tensors are cut into files, empty slices included, each range of each has the elements of the whole."""
    files = cut(TENSORS, cuts)
    slices = SlicedTensors(ShardLayout.of([opened(files)(file) for file in files]), opened(files))
    assert {name: tuple(shape) for name, shape in slices.shapes.items()} == {
        name: tuple(tensor.shape) for name, tensor in TENSORS.items()
    }
    flat = TENSORS[name].reshape(-1)
    start = data.draw(st.integers(0, len(flat)))
    count = data.draw(st.integers(0, len(flat) - start))
    assert torch.equal(slices.read(name, start, count), flat[start : start + count])
    assert torch.equal(slices.whole(name), TENSORS[name])


def test_a_whole_file_is_read_by_ranges_too():
    """A file of whole tensors, by whomever it was written, is a layout of one."""
    files = {"whole": bytes_of(TensorsPart("whole", TENSORS))}
    slices = SlicedTensors(ShardLayout.of([opened(files)("whole")]), opened(files))
    assert torch.equal(slices.read("weight", 3, 9), TENSORS["weight"].reshape(-1)[3:12])


@pytest.mark.parametrize("cuts", [(), (0.5,), (0.1, 0.4, 0.4, 0.9)])
def test_slices_are_joined_to_the_very_file_of_the_whole(cuts):
    """The joined file has the bytes that one process would have written, constants included."""
    files, constants = cut(TENSORS, cuts), {"base": torch.arange(3, dtype=torch.uint8)}
    joined = ConsolidatedTensors("model", list(files), constants=constants)
    assert b"".join(joined.chunks(partial(read, files))) == bytes_of(TensorsPart("model", {**TENSORS, **constants}))


@pytest.mark.parametrize("model_type", ["gpt2", "starcoder2", "llama"])
def test_joined_tensors_are_converted_layer_by_layer(model_type):
    """Names, transposed matrices and joint ones come out as if all tensors had been converted at once."""
    names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj"]
    tensors = {
        f"model.layers.{layer}.{name}.weight": torch.randn(6, 6, generator=GENERATOR)
        for layer in (0, 1, 10, 11)
        for name in names
    } | {"model.embed_tokens.weight": torch.randn(9, 6, generator=GENERATOR)}
    files, convert = cut(tensors, (0.3, 0.5)), partial(to_huggingface, model_type)
    joined = ConsolidatedTensors("model", list(files), convert)
    assert b"".join(joined.chunks(partial(read, files))) == bytes_of(TensorsPart("model", convert(tensors)))


def test_the_layout_tells_where_each_range_is():
    """The JSON names each tensor's shape, dtype and ranges, and is enough to read any of them."""
    files = cut(TENSORS, (0.5,))
    text = b"".join(ShardLayoutPart("layout", list(files)).chunks(partial(read, files)))
    told = json.loads(text)
    assert told["files"] == ["part-0", "part-1"]
    assert told["tensors"]["weight"] == {"dtype": "F32", "shape": [7, 5], "ranges": [[0, 17], [17, 18]]}
    assert told["tensors"]["step"]["ranges"] == [[0, 0], [0, 1]]
    slices = SlicedTensors(ShardLayout.from_json(text, "layout"), opened(files))
    assert torch.equal(slices.whole("weight"), TENSORS["weight"])


def test_slices_that_make_no_whole_are_refused():
    """A rank's file that is missing, and slices that leave a gap, are an error and not zeros."""
    files = cut(TENSORS, (0.2, 0.6))
    for names in (["part-0", "part-2"], ["part-1", "part-2"], ["part-0", "part-1"]):
        with pytest.raises(StateError, match="do not cover all of it"):
            b"".join(ConsolidatedTensors("model", names).chunks(partial(read, files)))


def test_a_range_that_several_files_have_counts_once():
    """Ranks that hold the same range leave one in the layout."""
    files = cut(TENSORS, (0.5,)) | {"part-2": cut(TENSORS, (0.5,))["part-1"]}
    layout = ShardLayout.of([opened(files)(name) for name in files])
    assert layout.tensors["weight"].places == [(0, 17, 0, 1), (17, 18, 0, 1), (0, 0, 0, 1)]


LAYOUT = '{"files": ["a"], "tensors": {"w": {"dtype": "F32", "shape": [2], "ranges": %s}}}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        LAYOUT % "[[0, 1]]",
        LAYOUT % "[[1, 1]]",
        LAYOUT % "[]",
        LAYOUT % "3",
        LAYOUT % "[[0, 2], [0, 2]]",
    ],
)
def test_a_layout_that_is_none_is_refused(text):
    """Anything but what was written is a ``StateError`` that names the file."""
    with pytest.raises(StateError, match=r"layout|do not cover all of it"):
        ShardLayout.from_json(text.encode(), "layout")


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:20], lambda _: b"", lambda d: b"\xff" * 8]
)
def test_a_damaged_file_is_refused_when_it_is_opened(damage):
    """A file that is cut short or no safetensors file raises ``StateError`` before a tensor is read."""
    files = {"whole": damage(bytes_of(TensorsPart("whole", TENSORS)))}
    with pytest.raises(StateError, match="whole cannot be read"):
        opened(files)("whole")


def test_a_range_is_put_where_it_belongs():
    """A tensor that takes a range as it was saved is filled in place, another gets one beside it, of its own type."""
    files = cut(TENSORS, [0.5])
    saved = SlicedTensors(ShardLayout.of([opened(files)(name) for name in files]), opened(files))
    own = torch.zeros(20)
    assert saved.read("weight", 10, 20, own) is own
    assert torch.equal(own, TENSORS["weight"].reshape(-1)[10:30])
    other = torch.zeros(6)
    found = saved.read("half", 0, 6, other)
    assert found is not other
    assert torch.equal(found, TENSORS["half"])


def blocks(tensor, rows, columns):
    """Return files in which ``tensor`` is cut before each of ``rows`` and ``columns``."""
    files, width = {}, tensor.shape[1]
    for top, bottom in zip((0, *rows), (*rows, len(tensor)), strict=True):
        for left, right in zip((0, *columns), (*columns, width), strict=True):
            block = tensor[top:bottom, left:right]
            place = TensorBlock(top * width + left, right - left, width, bottom - top)
            name = f"part-{len(files)}"
            piece = {"weight": Slice(tensor.shape, place, block.reshape(-1))} if block.numel() else {}
            files[name] = bytes_of(slices_part(name, piece))
    return files


@settings(deadline=None, max_examples=100)
@given(data=st.data(), shape=st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_any_range_is_read_from_blocks_of_rows_and_columns(data, shape):
    """A range of a matrix whose files hold blocks is the range of the matrix, and so it is after a trip to JSON."""
    tensor = torch.randn(shape, generator=GENERATOR)
    rows, columns = (data.draw(st.lists(st.integers(0, size), max_size=3).map(sorted)) for size in shape)
    files = blocks(tensor, rows, columns)
    layout = ShardLayout.of([opened(files)(name) for name in files])
    layout = ShardLayout.from_json(layout.to_json().encode(), "layout.json")
    start = data.draw(st.integers(0, tensor.numel()))
    count = data.draw(st.integers(0, tensor.numel() - start))
    found = SlicedTensors(layout, opened(files)).read("weight", start, count)
    assert torch.equal(found, tensor.reshape(-1)[start : start + count])


def test_a_missing_block_is_noticed():
    """Blocks that do not make up the whole matrix are refused."""
    files = blocks(torch.randn(4, 6, generator=GENERATOR), [2], [3])
    del files["part-2"]
    with pytest.raises(StateError, match="do not cover all of it"):
        ShardLayout.of([opened(files)(name) for name in files])


def test_a_file_that_claims_too_many_runs_is_refused():
    """A layout with more runs than any matrix has is refused before memory is filled with them."""
    claim = {"dtype": "F32", "shape": [1 << 40], "ranges": [[0, 1, 1, 1 << 40]]}
    with pytest.raises(StateError, match="do not cover all of it"):
        ShardLayout.from_json(json.dumps({"files": ["a"], "tensors": {"weight": claim}}).encode(), "layout.json")
