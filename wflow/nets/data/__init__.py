"""Data for the network studies: images, texts, batches, perturbations.

`datasets`, `pictures`, `clouds`, `modelnet`, `shapes` (on the surfaces of `meshes`) and `reviews`
load them, `download` finds or fetches their files,
`archives` reads them in place, `tokenize` turns text to numbers, `preparing` turns the documents of
a large text into `token_files`, `batches` are pure functions of (seed, step),
`augment` changes the inputs of a training at random, `perturb` disturbs those of a test, and
`densities` draws from those in the plane. Start with `datasets`.
"""

from wflow.nets.data.augment import RandomCrops, RandomPoses
from wflow.nets.data.batches import CloudBatches, TextBatches
from wflow.nets.data.clouds import PointClouds, mnist_clouds, standardised
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
from wflow.nets.data.meshes import Mesh, read_off, sample_surface
from wflow.nets.data.modelnet import modelnet40
from wflow.nets.data.perturb import rotate_points
from wflow.nets.data.pictures import cats_and_dogs
from wflow.nets.data.preparing import prepare_text
from wflow.nets.data.reviews import Reviews, imdb
from wflow.nets.data.shapes import solids
from wflow.nets.data.token_files import TokenFile, TokenFiles
from wflow.nets.data.tokenize import TrainedBytePairs

__all__ = [
    "BytePairs",
    "Characters",
    "CloudBatches",
    "CropBatches",
    "ImageBatches",
    "Images",
    "Mesh",
    "PlanarBatches",
    "PointClouds",
    "RandomCrops",
    "RandomPoses",
    "Reviews",
    "Text",
    "TextBatches",
    "TokenFile",
    "TokenFiles",
    "Tokenizer",
    "TrainedBytePairs",
    "cats_and_dogs",
    "digits",
    "drop_points",
    "embedded_text",
    "gaussian_noise",
    "imdb",
    "mnist",
    "mnist_clouds",
    "modelnet40",
    "planar",
    "prepare_text",
    "read_idx",
    "read_off",
    "replace_tokens",
    "rotate_points",
    "sample_surface",
    "shakespeare",
    "solids",
    "standardised",
    "uniform_noise",
    "unit",
    "windows",
]


def __dir__() -> list[str]:
    return __all__
