"""An answer decoded piece by piece is the answer decoded whole, whatever the tokenizer and its tokens."""

import random

import pytest
from chat_families import FAMILIES, make
from transformers import PreTrainedTokenizerFast

from art_nb.inference.texts import GrowingText, Texts

TEXTS = ["héé 漢字 🙂 up", "a\n\n  b\t c", "👩‍👩‍👧‍👦 naïve — “so”", "\ufffd\ufffd x", " lead", "don't , no . yes !", ""]


def of_words():
    """A tokenizer that puts blanks between words: BERT's, which also takes some of them away."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = ["[UNK]", "[PAD]", *"abcdefghij", "##a", "##bc", ".", ",", "'", "n", "do", "##n't", "👩", "##\ufffd"]
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix="##", cleanup=True)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")


def of_metaspace():
    """T5's and XLNet's kind: pieces with a mark for blanks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = [("<unk>", 0.0), *((piece, -1.0 - i / 9) for i, piece in enumerate(["▁", "▁a", "a", "▁▁", "b", "▁the", "🙂", ".", "▁."]))]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def of_word_ends():
    """GPT-1's kind: pieces with a mark for the end of a word."""
    from tokenizers import Tokenizer, decoders, models

    pieces = ["<unk>", "a</w>", "a", "b</w>", "bc", "🙂</w>", ".</w>"]
    backend = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


MADE = {"wordpiece": of_words, "metaspace": of_metaspace, "word ends": of_word_ends}


@pytest.fixture(scope="module", params=[*FAMILIES, *MADE])
def tokenizer(request):
    return MADE[request.param]() if request.param in MADE else make(request.param)


def answers(tokenizer, count):
    """Sequences of ids: of any tokens; mostly of those that are parts of characters, or bytes; of real text."""
    draws, everything = random.Random(0), list(range(len(tokenizer)))
    odd = [i for i in everything if "\ufffd" in tokenizer.decode([i])] or everything
    texts = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    for i in range(count):
        kinds = [[[draws.choice(everything)]], [[draws.choice(odd)]], [draws.choice(texts)]]
        weights = [(1, 1, 1), (1, 8, 1), (1, 1, 8), (1, 0, 0)][i % 4]
        yield [token for _ in range(60) for token in draws.choice(draws.choices(kinds, weights)[0])]


def test_what_is_decoded_as_it_grows_is_what_is_decoded_whole(tokenizer):
    texts = Texts(tokenizer)
    for tokens in answers(tokenizer, 24):
        text, end, draws = GrowingText(texts), 0, random.Random(1)
        while end < len(tokens):
            end = min(len(tokens), end + draws.choice([1, 1, 1, 2, 9]))  # guesses come several at once
            spoken = end
            while spoken and tokens[spoken - 1] in texts.bytes:
                spoken -= 1
            for until in (end, spoken, end):
                assert text.of(tokens, until) == tokenizer.decode(tokens[:until], clean_up_tokenization_spaces=False)


def test_decoding_goes_on_where_it_left_off(tokenizer):
    """However long an answer is, a further token costs the same: of whole characters, no more than a few are decoded again."""
    texts, lengths = Texts(tokenizer), []
    whole = [i for i in range(len(tokenizer)) if "\ufffd" not in tokenizer.decode([i]) and i not in texts.bytes]
    texts._backend = Counted(texts._backend, lengths)
    text, tokens = GrowingText(texts), random.Random(2).choices(whole, k=300)
    for end in range(1, len(tokens) + 1):
        text.of(tokens, end)
    assert max(lengths) < 20 and sum(lengths) < 15 * len(tokens)


class Counted:
    def __init__(self, backend, lengths):
        self.backend, self.lengths = backend, lengths

    def decode(self, tokens, **how):
        self.lengths.append(len(tokens))
        return self.backend.decode(tokens, **how)


def test_bytes_are_the_tokens_named_so(tokenizer):
    texts = Texts(tokenizer)
    named = {i for name, i in tokenizer.get_vocab().items() if len(name) == 6 and name.startswith("<0x")}
    assert texts.bytes == named and len(named) in (0, 256)
    assert texts.of_token(5) == tokenizer.decode([5], clean_up_tokenization_spaces=False)
