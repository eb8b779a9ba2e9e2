"""Incremental decoding equals decoding the whole answer, for all kinds of tokenizers."""

import random

import pytest
from chat_families import FAMILIES, make
from transformers import PreTrainedTokenizerFast

from art_nb.inference.vocabulary import IncrementalText, Vocabulary

TEXTS = ["héé 漢字 🙂 up", "a\n\n  b\t c", "👩‍👩‍👧‍👦 naïve — “so”", "\ufffd\ufffd x", " lead", "don't , no . yes !", ""]


def of_words():
    """A tokenizer that adds spaces between words and removes some of them, like BERT's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = ["[UNK]", "[PAD]", *"abcdefghij", "##a", "##bc", ".", ",", "'", "n", "do", "##n't", "👩", "##\ufffd"]
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix="##", cleanup=True)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")


def of_metaspace():
    """Pieces with a marker for spaces, as in T5 and XLNet."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = [("<unk>", 0.0), *((piece, -1.0 - i / 9) for i, piece in enumerate(["▁", "▁a", "a", "▁▁", "b", "▁the", "🙂", ".", "▁."]))]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def of_word_ends():
    """Pieces with a marker for the end of a word, as in GPT-1."""
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
    """Sequences of ids: of any tokens, mostly of parts of characters and bytes, mostly of real text."""
    draws, everything = random.Random(0), list(range(len(tokenizer)))
    odd = [i for i in everything if "\ufffd" in tokenizer.decode([i])] or everything
    vocabulary = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    for i in range(count):
        kinds = [[[draws.choice(everything)]], [[draws.choice(odd)]], [draws.choice(vocabulary)]]
        weights = [(1, 1, 1), (1, 8, 1), (1, 1, 8), (1, 0, 0)][i % 4]
        yield [token for _ in range(60) for token in draws.choice(draws.choices(kinds, weights)[0])]


def test_incremental_text_equals_decoding_the_whole(tokenizer):
    vocabulary = Vocabulary(tokenizer)
    for tokens in answers(tokenizer, 24):
        text, end, draws = IncrementalText(vocabulary), 0, random.Random(1)
        while end < len(tokens):
            end = min(len(tokens), end + draws.choice([1, 1, 1, 2, 9]))  # with speculation, several tokens at a time
            spoken = end
            while spoken and tokens[spoken - 1] in vocabulary.byte_tokens:
                spoken -= 1
            for until in (end, spoken, end):
                assert text.of(tokens, until) == tokenizer.decode(tokens[:until], clean_up_tokenization_spaces=False)


def test_incremental_text_decodes_few_tokens_again(tokenizer):
    """The cost of a further token does not grow with the answer."""
    vocabulary, lengths = Vocabulary(tokenizer), []
    whole = [i for i in range(len(tokenizer)) if "\ufffd" not in tokenizer.decode([i]) and i not in vocabulary.byte_tokens]
    vocabulary._backend = CountedDecodes(vocabulary._backend, lengths)
    text, tokens = IncrementalText(vocabulary), random.Random(2).choices(whole, k=300)
    for end in range(1, len(tokens) + 1):
        text.of(tokens, end)
    assert max(lengths) < 20 and sum(lengths) < 15 * len(tokens)


class CountedDecodes:
    def __init__(self, backend, lengths):
        self.backend, self.lengths = backend, lengths

    def decode(self, tokens, **how):
        self.lengths.append(len(tokens))
        return self.backend.decode(tokens, **how)


def test_byte_tokens(tokenizer):
    vocabulary = Vocabulary(tokenizer)
    named = {i for name, i in tokenizer.get_vocab().items() if len(name) == 6 and name.startswith("<0x")}
    assert vocabulary.byte_tokens == named and len(named) in (0, 256)
    assert vocabulary.token_text(5).strip() == tokenizer.decode([5], clean_up_tokenization_spaces=False).strip()


def test_token_texts_concatenate_to_the_text():
    """Also with a tokenizer that removes the space before the first token."""
    for name in FAMILIES:
        vocabulary = Vocabulary(tokenizer := make(name))
        tokens = tokenizer.encode("left or right", add_special_tokens=False)
        assert "".join(map(vocabulary.token_text, tokens)).lstrip() == "left or right"
