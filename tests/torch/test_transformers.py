"""GPT-2 and Llama of transformers with a KV cache, one that grows and one that is changed in place; experts."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")
transformers = pytest.importorskip("transformers", reason="make nightly installs transformers beside torch")

import roller_tvm  # noqa: E402
from roller_bench.families import find  # noqa: E402
from roller_tvm.torch_backend import roller  # noqa: E402

pytestmark = [
    pytest.mark.relax,
    pytest.mark.nightly,
    pytest.mark.filterwarnings("error::roller_tvm.torch_backend.RunsInTorch"),
]

TINY = {"vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
CONFIGS = {
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "Llama": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "intermediate_size": 128, "max_position_embeddings": 64},
}  # fmt: skip


@pytest.mark.parametrize("cache", ["DynamicCache", "StaticCache"])
@pytest.mark.parametrize("family", CONFIGS)
def test_tokens_are_torchs(family, cache):
    torch.compiler.reset()
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**CONFIGS[family], **TINY)
    module = getattr(transformers, {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}[family])(config).eval()
    prompt = torch.randint(3, 100, (1, 8))

    def decoded(model):
        given = {"max_cache_len": 32} if cache == "StaticCache" else {}
        past, ids, scores = getattr(transformers, cache)(config=config, **given), prompt, []
        with torch.no_grad():
            for _ in range(6):
                scores.append(model(input_ids=ids, past_key_values=past, use_cache=True).logits[:, -1])
                ids = scores[-1].argmax(-1, keepdim=True)
        return torch.stack(scores)

    torch.testing.assert_close(decoded(torch.compile(module, backend=roller)), decoded(module), rtol=1e-4, atol=1e-5)


class Experts(torch.nn.Module):
    """Rows by the matrices of their experts, whose rows end at known places."""

    def __init__(self, ends):
        super().__init__()
        self.ends = torch.tensor(ends, dtype=torch.int32)

    def forward(self, rows, matrices):
        ends = self.ends + (rows.sum() > 1e9).int()  # else a constant
        return torch.ops.transformers.grouped_mm_fallback(rows, matrices, ends)


@pytest.mark.parametrize("ends", [[2, 2, 5, 9], [9, 9, 9, 9], [0, 0, 0, 9], [0, 3, 3, 4]])
def test_rows_by_their_experts_matrices(ends):
    import transformers.integrations.moe  # noqa: F401

    torch.manual_seed(0)
    inputs, module = (torch.randn(9, 6), torch.randn(4, 6, 5)), Experts(ends)
    model = roller_tvm.compile(module, example_inputs=inputs)
    assert any("products by all experts (1)" in note for note in model.notes)
    np.testing.assert_allclose(model(*inputs), module(*inputs).numpy(), rtol=1e-5, atol=1e-6)


def test_mixtral():
    module, samples = find(["Mixtral"])[0].make()
    model = roller_tvm.compile(module, example_inputs=samples[0])
    left = {plan.kernel for plan in model.report().plans if plan.how != "planned"}
    assert left <= {"argsort", "topk", "cumsum", "index_put"}
    for sample in samples:
        with torch.no_grad():
            np.testing.assert_allclose(model(*sample), module(*sample).numpy(), rtol=1e-4, atol=1e-5)
