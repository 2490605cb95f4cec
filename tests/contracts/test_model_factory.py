from typing import ClassVar

import numpy as np
import pytest
import torch

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.model_factory.memory import MemoryModelFactory
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.testing.model_factory import VOCABULARY_SIZE, ModelFactoryContract

TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


class TestMemoryModelFactory(ModelFactoryContract):
    dtype = np.float64  # exactness is what this model is for

    def make_factory(self):
        return MemoryModelFactory()

    def make_factory_without(self, vocabulary_size):
        return None

    def weights(self, model):
        return {"logits": model.logits}

    def is_training(self, model):
        return True


class TestHuggingfaceModelFactory(ModelFactoryContract):
    def make_factory(self):
        return HuggingfaceModelFactory(config=TINY)

    def make_factory_without(self, vocabulary_size):
        return HuggingfaceModelFactory(config=TINY | {"vocab_size": vocabulary_size - 1})

    def test_a_description_is_enough_to_refuse_a_vocabulary(self):
        """What ``build`` refuses for its vocabulary is refused by ``check``, which reads no weights."""
        with pytest.raises(ConfigurationError, match=str(VOCABULARY_SIZE)):
            self.make_factory_without(VOCABULARY_SIZE).check(vocabulary_size=VOCABULARY_SIZE)

    def weights(self, model):
        return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}

    def is_training(self, model):
        return all(module.training for module in model.modules())

    def random_states(self):
        return {**super().random_states(), "torch": torch.get_rng_state().tolist()}


class TestDecoderModelFactory(TestHuggingfaceModelFactory):
    shape: ClassVar = {name: value for name, value in TINY.items() if name != "model_type"}

    def make_factory(self):
        return DecoderModelFactory(config=self.shape)

    def make_factory_without(self, vocabulary_size):
        return DecoderModelFactory(config=self.shape | {"vocab_size": vocabulary_size - 1})
