"""Single linkage on the sphere, compiled: components at a scale, heights of the spanning tree.

Chords take the place of geodesic distances, |x - y| = 2 sin(distance / 2), because they are exact
for tokens that nearly agree. Memory is O(n) throughout: no matrix of pairs is formed.

A scale is often the distance of a pair, and regular polytopes have many equal distances, so that
ties are joined: `reach` says what the rounding of tokens and of a distance explains.
"""

import math

import numpy as np
from numpy.typing import NDArray

from wflow._core.compiler.functions import kernel

FloatArray = NDArray[np.float64]

_EPS = float(np.finfo(float).eps)
_SMALL = 2000  # tokens up to which no tree is used
_PAIRS = 20_000_000  # that the tree may list at once
_FAR = 2.0  # chords from the first token of a component, up to which its distances are exact


@kernel
def _flood(x, chord):
    """Return the components (n,) of the graph |x_i - x_j| <= chord, numbered by first token.

    A component begins with the first token that is left. Tokens found are struck off the list
    that later ones search: at most n^2 d / 2 multiply-adds. A token that is close to the first
    one searches nothing where all others are far from that: n d for tight clusters.
    """
    n, d = x.shape
    chord_sq = chord * chord
    label, left, stack = np.empty(n, np.int64), np.arange(n), np.empty(n, np.int64)
    remaining, current = n, -1
    while remaining > 0:
        current += 1
        root = left[0]
        remaining -= 1
        for place in range(remaining):
            left[place] = left[place + 1]
        label[root], stack[0] = current, root
        waiting, far = 1, 0.0
        while waiting > 0 and remaining > 0:
            waiting -= 1
            i = stack[waiting]  # the last one found: it leads on to others
            beside = 0.0
            for k in range(d):
                beside += (x[i, k] - x[root, k]) ** 2
            if far - math.sqrt(beside) > chord:
                continue
            limit = chord_sq if i != root else _FAR * _FAR * chord_sq
            nearest, kept = np.inf, 0
            for place in range(remaining):
                j = left[place]
                apart = 0.0
                k = 0
                while k < d and apart <= limit:
                    gap = x[i, k] - x[j, k]
                    apart += gap * gap
                    k += 1
                if apart <= chord_sq:
                    label[j], stack[waiting] = current, j
                    waiting += 1
                else:
                    left[kept] = j
                    kept += 1
                    nearest = min(nearest, apart)
            remaining = kept
            if i == root:
                far = (1 - 1e-9) * math.sqrt(nearest)
    return label


@kernel
def _spanning_tree(x):
    """Return squared chords of the edges of the minimum spanning tree, unsorted; x (n, d).

    Prim's algorithm on the complete graph: n^2 d / 2 multiply-adds.
    """
    n, d = x.shape
    edges = np.empty(n - 1)
    left = np.arange(1, n)
    nearest = np.full(n, np.inf)
    latest = 0
    for step in range(n - 1):
        best, chosen = np.inf, 0
        for place in range(n - 1 - step):
            j = left[place]
            apart = 0.0
            for k in range(d):
                gap = x[latest, k] - x[j, k]
                apart += gap * gap
            if apart < nearest[j]:
                nearest[j] = apart
            if nearest[j] < best:
                best, chosen = nearest[j], place
        edges[step] = best
        latest = left[chosen]
        left[chosen] = left[n - 2 - step]
    return edges


def reach(scale: float, unit: float = _EPS) -> float:
    """Return the longest chord of tokens whose geodesic distance is at most the scale.

    A cosine 1 - chord^2 / 2 is off by a few units of rounding, so that the chord of an arccos is
    off by units / chord, which counts as rounding up to sqrt(unit) / 32 of the chord. Coordinates
    are off by a unit. The sum increases with the scale.
    """
    chord = 2 * math.sin(scale / 2)
    tie = min(16 * unit / chord, math.sqrt(unit) / 32 * chord) if chord > 0 else 0.0
    return chord + tie + 2 * unit


def components(x: FloatArray, scale: float, unit: float = _EPS) -> NDArray[np.int64]:
    """Label connected components of tokens at geodesic distance <= scale, by first token.

    Ties are joined, to the rounding of tokens of this unit (`reach`).
    """
    if scale >= math.pi:
        return np.zeros(len(x), np.int64)
    chord = reach(scale, unit)
    if len(x) <= _SMALL:
        return _flood(x, chord)
    # Equal tokens, of which a cloud that has clustered is full, are more than a tree can split.
    different, of = np.unique(x, axis=0, return_inverse=True)
    return canonical(_linked(different, chord)[of.reshape(-1)])


def _linked(x: FloatArray, chord: float) -> NDArray[np.integer]:
    """Label components of many different tokens, by a tree search or by the flood."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    tree = cKDTree(x)
    # Counting is cheap. Of a dense cloud the tree would list every pair; the flood swallows it in
    # a few rounds.
    if tree.count_neighbors(tree, chord) > _PAIRS:
        return _flood(x, chord)
    pairs = tree.query_pairs(chord, output_type="ndarray")
    edges = np.ones(len(pairs), np.int8), (pairs[:, 0], pairs[:, 1])
    return connected_components(coo_array(edges, shape=(len(x), len(x))), directed=False)[1]


def merge_heights(x: FloatArray) -> FloatArray:
    """Return geodesic distances (n - 1,) at which single linkage merges two clusters, ascending."""
    if len(x) == 1:
        return np.empty(0)
    chords = np.sqrt(np.sort(_spanning_tree(x)))
    return 2 * np.arcsin(np.minimum(chords / 2, 1.0))


def canonical(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Number labels in the order in which they first appear."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]
