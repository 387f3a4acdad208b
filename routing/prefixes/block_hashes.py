"""Numbers that stand for text: what a gateway tells a prefix index of a prompt."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from struct import pack, unpack

TOKEN_TYPE = "I"  # 32 bits, in the machine's byte order
HASH_BYTES = 8


def block_hashes(
    token_ids: Sequence[int], block_tokens: int, adapter: str = "", cache_salt: str = ""
) -> tuple[int, ...]:
    """A 64-bit number for each full block of a prompt, from the block's tokens and the number before it.

    So equal numbers mean equal text up to and including the block. They are the same in every process; 8,192 tokens
    in blocks of 64 take about 0.15 ms.

    Args:
        token_ids: The prompt, each id below 2^32.
        block_tokens: Tokens in a block.
        adapter: What the prompt is computed with: the KV of equal text is another's then.
        cache_salt: Likewise: who has another one does not find it.
    """
    text = array(TOKEN_TYPE, token_ids).tobytes()
    num_blocks = len(token_ids) // block_tokens
    block_bytes = len(text) // max(1, len(token_ids)) * block_tokens
    digest = first_digest(adapter, cache_salt)
    digests: list[bytes] = []
    for begin in range(0, num_blocks * block_bytes, block_bytes or 1):
        digest = next_digest(digest, text[begin : begin + block_bytes])
        digests.append(digest)
    return unpack(f">{num_blocks}Q", b"".join(digests))


def prompt_id(
    token_ids: Sequence[int],
    blocks: Sequence[int] = (),
    block_tokens: int = 0,
    adapter: str = "",
    cache_salt: str = "",
) -> int:
    """A 64-bit number for a whole prompt: equal numbers mean equal text, and the same KV. 500 tokens take about 5 us.

    Args:
        token_ids: The prompt, each id below 2^32.
        blocks: Its :func:`block_hashes`, where they are known: only what is behind them is looked at then.
        block_tokens: Tokens in a block.
        adapter: As for those.
        cache_salt: Likewise.
    """
    digest = pack(">Q", blocks[-1]) if blocks else first_digest(adapter, cache_salt)
    rest = array(TOKEN_TYPE, token_ids[len(blocks) * block_tokens :]).tobytes()
    return int.from_bytes(next_digest(digest, rest), "big")


def first_digest(adapter: str = "", cache_salt: str = "") -> bytes:
    """What stands before the first block of a text."""
    return f"{adapter}\0{cache_salt}".encode() if cache_salt else adapter.encode()


def next_digest(before: bytes, block: bytes) -> bytes:
    """The digest of a block of text after what the digest before it stands for; its number is this, big end first.

    Args:
        before: Of the block before it, or :func:`first_digest`.
        block: Its tokens, as ``TOKEN_TYPE`` has them.
    """
    return blake2b(before + block, digest_size=HASH_BYTES).digest()
