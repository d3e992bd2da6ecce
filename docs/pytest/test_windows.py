from vllm import LLM, SamplingParams


def test_rejected_drafts_find_their_window(settled, no_device):
    llm = LLM(**no_device, async_scheduling=True)
    settled.attach(llm)
    sampling = SamplingParams(max_tokens=40, ignore_eos=True, detokenize=False)
    (answer,) = llm.generate({"prompt_token_ids": [7] * 60}, sampling, use_tqdm=False)
    assert len(answer.outputs[0].token_ids) == 40
