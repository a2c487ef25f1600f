"""Data for the network studies: images, texts, batches, perturbations.

`datasets` loads them, `download` finds or fetches their files, `tokenize` turns text to numbers,
`batches` are pure functions of (seed, step), `reviews` are labelled texts of any length,
`trained_pairs` byte pairs learnt from texts, `densities` draws from those in the plane, `perturb`
`datasets` and `pictures` load them, `download` finds or fetches their files, `tokenize` turns text to numbers,
`batches` are pure functions of (seed, step), `densities` draws from those in the plane, `perturb`
disturbs inputs. Start with `datasets`.
`datasets` and `pictures` load them, `download` finds or fetches their files, `tokenize` turns text
to numbers, `batches` are pure functions of (seed, step), `densities` draws from those in the plane,
`perturb` disturbs inputs. Start with `datasets`.
"""

from wflow.nets.data.datasets import (
    BytePairs,
    Characters,
    CropBatches,
    ImageBatches,
    Images,
    Text,
    Tokenizer,
    digits,
    drop_points,
    embedded_text,
    gaussian_noise,
    mnist,
    read_idx,
    replace_tokens,
    shakespeare,
    uniform_noise,
    unit,
    windows,
)
from wflow.nets.data.densities import PlanarBatches, planar
from wflow.nets.data.reviews import Reviews, TextBatches, imdb
from wflow.nets.data.trained_pairs import TrainedBytePairs
from wflow.nets.data.pictures import RandomCrops, cats_and_dogs

__all__ = [
    "BytePairs",
    "Characters",
    "CropBatches",
    "ImageBatches",
    "Images",
    "PlanarBatches",
    "Reviews",
    "RandomCrops",
    "Text",
    "TextBatches",
    "Tokenizer",
    "TrainedBytePairs",
    "cats_and_dogs",
    "digits",
    "drop_points",
    "embedded_text",
    "gaussian_noise",
    "imdb",
    "mnist",
    "planar",
    "read_idx",
    "replace_tokens",
    "shakespeare",
    "uniform_noise",
    "unit",
    "windows",
]
