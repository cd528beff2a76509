"""Tuples, lists and dicts of tensors."""

import torch

from lesson.learn.trees import describe_tree, join, map_tensors, num_samples, split


def test_trees_are_split_and_joined_by_rows() -> None:
    tree = {"x": torch.arange(5), "y": (torch.eye(5), [torch.zeros(5, dtype=torch.bool)])}
    parts = split(tree, [2, 3])
    assert [num_samples(part) for part in parts] == [2, 3]
    assert parts[1]["x"].tolist() == [2, 3, 4]
    assert torch.equal(join(parts)["y"][0], torch.eye(5))
    assert describe_tree(join(parts)) == describe_tree(tree) == "x: int64 (5,), y: float32 (5, 5), bool (5,)"


def test_map_tensors_keeps_other_leaves_and_container_types() -> None:
    doubled = map_tensors(lambda one: 2 * one, ([torch.ones(1)], "text", {"none": None}))
    assert doubled == ([torch.full((1,), 2.0)], "text", {"none": None})
