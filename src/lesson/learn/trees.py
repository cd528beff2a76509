"""Inputs, targets and outputs of models: a tensor, or tuples, lists or dicts of tensors, to any depth."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Any
"""A tensor, or a tuple, list or dict of trees; other values, such as a number in an output, are leaves, too."""


def map_leaves(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Return the tree with `function` applied to each of its leaves."""
    if isinstance(tree, Mapping):
        return {name: map_leaves(function, part) for name, part in tree.items()}
    if isinstance(tree, tuple | list):
        parts = (map_leaves(function, part) for part in tree)
        return list(parts) if isinstance(tree, list) else tuple(parts)
    return function(tree)


def map_tensors(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Return the tree with `function` applied to each of its tensors."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def leaves_of(tree: Tree) -> list[Any]:
    """Return the leaves of a tree in order."""
    leaves = list[Any]()
    map_leaves(leaves.append, tree)
    return leaves


def num_samples(tree: Tree) -> int:
    """Return the number of rows of the tensors, which is the number of samples."""
    return len(leaves_of(tree)[0])


def split(tree: Tree, sizes: list[int]) -> list[Tree]:
    """Split the rows of the tensors into consecutive parts of these sizes."""
    if isinstance(tree, Tensor):
        return list(tree.split(sizes))
    rows = zip(*(leaf.split(sizes) for leaf in leaves_of(tree)), strict=True)
    return [_with_leaves(tree, row) for row in rows]


def join(trees: Sequence[Tree]) -> Tree:
    """Return the tree whose tensors have the rows of all trees, one after the other."""
    return _with_leaves(trees[0], map(torch.cat, zip(*map(leaves_of, trees), strict=True)))


def describe_tree(tree: Tree) -> str:
    """Return the type and shape of each tensor as text, for error messages."""
    if isinstance(tree, Tensor):
        return f"{str(tree.dtype).removeprefix('torch.')} {tuple(tree.shape)}"
    if isinstance(tree, Mapping):
        return ", ".join(f"{name}: {describe_tree(part)}" for name, part in tree.items())
    if isinstance(tree, tuple | list):
        return ", ".join(map(describe_tree, tree))
    return type(tree).__name__


def _with_leaves(tree: Tree, leaves: Iterable[Any]) -> Tree:
    """Return the tree with other leaves."""
    others = iter(leaves)
    return map_leaves(lambda _: next(others), tree)
