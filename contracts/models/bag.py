"""A text classifier on a bag of words: sequences of any length, laid end to end."""

from __future__ import annotations

from torch import Tensor, nn


class BagOfWords(nn.Module):
    """The class of each text from the mean of its words' embeddings.

    words (all words of all texts,) of word numbers, starts (texts,) where each text begins.
    """

    def __init__(self, words: int = 100, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(words, width, mode="mean")
        self.classify = nn.Linear(width, classes)

    def forward(self, words: Tensor, starts: Tensor) -> Tensor:
        return self.classify(self.embedding(words, starts).relu())
