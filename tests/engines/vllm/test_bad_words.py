"""Bad words: as many tokens as a worker has room for, whatever its tokenizer makes of them."""

from typing import Any

import pytest

from engines import EngineRequest, Sampling
from policies.errors import RequestInvalid

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A token for each byte of the text's compatibility form (NFKC): U+FDFA, three bytes, is 33 then."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from vllm.tokenizers.hf import get_cached_tokenizer

    vocabulary = {each: number for number, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_of_text = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytes_of_text.normalizer = normalizers.NFKC()
    bytes_of_text.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return get_cached_tokenizer(PreTrainedTokenizerFast(tokenizer_object=bytes_of_text))


def params_of(words: tuple[str, ...], tokenizer: Any) -> Any:
    from engines.vllm.engine import _sampling_params

    sampling = Sampling(max_tokens=1, bad_words=words)
    return _sampling_params(EngineRequest(request_id="q", prompt_token_ids=[1], sampling=sampling), None, tokenizer)


def test_words_that_fit_are_taken(tokenizer: Any) -> None:
    params = params_of(("\ufdfa" * 31,), tokenizer)
    assert [len(each) for each in params.bad_words_token_ids] == [31 * 33]


def test_few_bytes_that_become_more_tokens_than_there_is_room_for_are_refused(tokenizer: Any) -> None:
    with pytest.raises(RequestInvalid, match="bad_words have 1056 tokens; at most 1024 are taken") as caught:
        params_of(("\ufdfa" * 32,), tokenizer)
    assert caught.value.param == "bad_words"
