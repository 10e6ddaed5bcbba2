"""A tree of proposals in one pass: each row is as if its path were the text, and what is kept of it is as if it had been read so."""

import pytest
import torch
from pair.llama_shapes import SHAPES, TEXT, random_model, whole
from pair.test_graph_step import made as made_graph

from lessonlib.errors import LessonError
from lessonlib.pair.llama_step import LlamaStep
from lessonlib.pair.step import CachedModel
from lessonlib.pair.tree import Tree, tree_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning:triton")
PARENTS = (0, 0, 1, 1, 2, 3, 3, 6)  # rows 1 and 2 on the root, 3 and 4 on row 1, 5 on row 2, 6 and 7 on row 3, 8 on row 6
STEPS = {"lean": lambda shape: (random_model(shape), LlamaStep(random_model(shape))), "graph": made_graph}
CLOSE = {"lean": dict(rtol=1e-4, atol=1e-5), "graph": dict(rtol=1e-4, atol=5e-5)}


def test_the_shape_says_who_stands_on_whom():
    tree = Tree(PARENTS)
    assert len(tree) == 8 and tree.deepest == 4 and not tree.is_chain
    assert tree.depths == [0, 1, 1, 2, 2, 2, 3, 3, 4] and tree.ranks == [0, 1, 0, 1, 0, 0, 1, 0]
    assert tree.path[8] == (0, 1, 3, 6, 8) and tree.path[5] == (0, 2, 5)
    on = tree.on(torch.device("cpu"))
    assert on.sees[8].nonzero()[:, 0].tolist() == [0, 1, 3, 6, 8] and on.sees.sum() == sum(map(len, tree.path))
    assert [each.tolist() for each in on.by_rank] == [[0, 2, 4, 5, 7], [1, 3, 6]]
    assert on.elder.nonzero().tolist() == [[1, 0], [3, 2], [6, 5]]
    assert Tree((0, 1, 2)).is_chain and tree_of(PARENTS) is tree_of(tuple(PARENTS))


@pytest.mark.parametrize("parents", [(1,), (0, 2), (-1,), (0, 1, 5)])
def test_a_parent_comes_before_its_child(parents):
    with pytest.raises(LessonError, match="does not come before it"):
        Tree(parents)


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_row_is_as_if_its_path_were_the_text(kind, shape):
    model, step = STEPS[kind](shape)
    tree, tokens = Tree(PARENTS), torch.tensor([7, 1, 2, 3, 4, 5, 6, 7, 8], device=model.device)
    step.read(TEXT[:20])
    logits = step.run(tokens, tree=tree)
    for row, path in enumerate(tree.path):
        expected = whole(model, TEXT[:20] + [int(tokens[i]) for i in path])[-1]
        torch.testing.assert_close(logits[row], expected, **CLOSE[kind])


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("row", [0, 1, 4, 5, 8])
def test_what_is_kept_is_as_if_it_had_been_read(kind, row):
    model, step = STEPS[kind]("llama, scaled positions")
    tree, tokens = Tree(PARENTS), torch.tensor([7, 1, 2, 3, 4, 5, 6, 7, 8], device=model.device)
    step.read(TEXT[:20])
    for _ in range(2):  # a tree, a plain step, a tree again
        step.run(tokens, tree=tree)
        step.keep(tree.path[row])
        assert step.length == 20 + len(tree.path[row])
        text = TEXT[:20] + [int(tokens[i]) for i in tree.path[row]]
        torch.testing.assert_close(step.run(TEXT[:4]), whole(model, text + TEXT[:4])[-4:], **CLOSE[kind])
        step.rollback(20)


@pytest.mark.parametrize("rows, graphs", [(16, [16]), (17, [16, 64]), (64, [16, 64]), (70, [16])], ids=lambda each: str(each))
def test_a_tree_of_any_size_is_read_and_each_size_by_its_graph(rows, graphs):
    model, step = made_graph("llama")
    tree = Tree(tuple(max(0, row // 2 - row % 3) for row in range(rows - 1)))
    tokens = torch.randint(64, (rows,), generator=torch.Generator().manual_seed(1)).to(model.device)
    step.read(TEXT[:5])
    for _ in range(2):  # with steps of another size in between
        logits = step.run(tokens, tree=tree)
        for row in (0, 9, rows // 2, rows - 1):
            torch.testing.assert_close(logits[row], whole(model, TEXT[:5] + tokens[list(tree.path[row])].tolist())[-1], **CLOSE["graph"])
        step.keep(tree.path[-1])
        text = TEXT[:5] + tokens[list(tree.path[-1])].tolist() + TEXT[:3]
        torch.testing.assert_close(step.run(TEXT[:3]), whole(model, text)[-3:], **CLOSE["graph"])
        step.rollback(5)
    assert sorted(step.passes) == graphs


def test_a_chain_of_sixty_four_rows_sees_what_is_before_each():
    model, step = made_graph("qwen3, wide heads")
    torch.testing.assert_close(step.run((TEXT * 2)[:64]), whole(model, (TEXT * 2)[:64]), **CLOSE["graph"])


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("shape", ["llama", "qwen3, wide heads"])
def test_features_are_the_hidden_states_behind_the_layers_named(kind, shape):
    model, step = STEPS[kind](shape)
    step.tap((1, 2))
    step.read(TEXT[:20])
    hidden = model(torch.tensor([TEXT[:23]], device=model.device), output_hidden_states=True).hidden_states
    width = model.config.hidden_size
    torch.testing.assert_close(step.features[:, :width], hidden[1][0, :20], rtol=1e-4, atol=1e-4)
    logits = step.run(TEXT[20:23])
    torch.testing.assert_close(step.features[:, :width], hidden[1][0, 20:], rtol=1e-4, atol=1e-4)
    # behind the last layer and before the final norm: with both, the head gives the model's logits
    torch.testing.assert_close(model.lm_head(model.model.norm(step.features[:, width:])), logits, rtol=1e-4, atol=1e-4)
    step.tap(())
    step.run([1])
    assert step.features is None


def test_layers_that_are_not_there_are_refused():
    _, step = STEPS["lean"]("llama")
    for layers in ((0,), (3,), (2, 1), (1, 1)):
        with pytest.raises(LessonError, match="name layers from 1 to 2"):
            step.tap(layers)


def test_transformers_own_forward_takes_neither_trees_nor_taps():
    step = CachedModel(random_model("llama"), "it is told to")
    step.read(TEXT[:4])
    with pytest.raises(LessonError, match="tree of proposals cannot be verified by transformers' forward"):
        step.run([1, 2], tree=Tree((0,)))
    with pytest.raises(LessonError, match="hidden states cannot be had from transformers' forward"):
        step.tap((1,))
    step.tap(())
    step.run([1, 2, 3])
    step.keep([0, 1])
    assert step.length == 6
