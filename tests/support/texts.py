"""Small texts and tokenizers of the tests."""

from pathlib import Path

SENTENCES = ("the cat sat on the mat", "the dog sat on the cat", "a mat is on the dog")


def bpe(folder: Path, vocab: int = 300) -> Path:
    """Write a byte-level BPE, trained on ``SENTENCES``, into ``folder``; return ``folder``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    own = Tokenizer(models.BPE())
    own.decoder = decoders.ByteLevel()
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        show_progress=False,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    own.train_from_iterator(SENTENCES * 20, trainer)
    own.save(str(folder / "tokenizer.json"))
    return folder
