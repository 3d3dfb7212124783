"""The Merkle tree against the definition in RFC 6962, section 2.1, written down naively."""

import hashlib
from collections.abc import Callable

import pytest
from hypothesis import assume, given, strategies as st

from outlast.domain import merkle
from outlast.domain.merkle import EMPTY_ROOT, Frontier, Range, Subtree

SIZE_MAX = 300

# The roots over the first so many of these leaves, as the reference implementation of Certificate
# Transparency has them in its tests.
LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]

sizes = st.integers(0, SIZE_MAX)


def leaves(size: int) -> list[bytes]:
    return [merkle.leaf_hash(str(number).encode()) for number in range(size)]


def defined_root(hashes: list[bytes]) -> bytes:
    """MTH of the RFC, over leaf hashes."""
    if not hashes:
        return hashlib.sha256().digest()
    if len(hashes) == 1:
        return hashes[0]
    left = split(len(hashes))
    nodes = defined_root(hashes[:left]) + defined_root(hashes[left:])
    return hashlib.sha256(b"\x01" + nodes).digest()


def defined_path(index: int, hashes: list[bytes]) -> list[bytes]:
    """PATH of the RFC."""
    if len(hashes) == 1:
        return []
    left = split(len(hashes))
    if index < left:
        return [*defined_path(index, hashes[:left]), defined_root(hashes[left:])]
    return [*defined_path(index - left, hashes[left:]), defined_root(hashes[:left])]


def defined_subproof(old: int, hashes: list[bytes], is_known: bool) -> list[bytes]:
    """SUBPROOF of the RFC."""
    if old == len(hashes):
        return [] if is_known else [defined_root(hashes)]
    left = split(len(hashes))
    if old <= left:
        return [*defined_subproof(old, hashes[:left], is_known), defined_root(hashes[left:])]
    return [*defined_subproof(old - left, hashes[left:], False), defined_root(hashes[:left])]


def split(size: int) -> int:
    power = 1
    while power * 2 < size:
        power *= 2
    return power


def stored(hashes: list[bytes], kept_levels: int) -> dict[Subtree, bytes]:
    """All that a follower would have stored of this tree."""
    tree, kept = Frontier(kept_levels=kept_levels), dict[Subtree, bytes]()
    for number, leaf in enumerate(hashes):
        kept[Subtree(0, number)] = leaf
        kept.update(tree.append(leaf))
    return kept


@pytest.mark.parametrize("size", range(len(ROOTS)))
def test_the_known_roots_come_out(size: int) -> None:
    found = merkle.root([merkle.leaf_hash(leaf) for leaf in LEAVES[:size]])
    assert found.hex() == ROOTS[size]


def test_the_tree_over_nothing_has_the_digest_of_nothing() -> None:
    assert merkle.root([]) == EMPTY_ROOT == Frontier().root() == hashlib.sha256().digest()


@given(sizes)
def test_a_root_is_what_the_definition_says(size: int) -> None:
    assert merkle.root(leaves(size)) == defined_root(leaves(size))


@given(sizes, sizes)
def test_a_frontier_goes_on_where_another_ended(first: int, more: int) -> None:
    hashes = leaves(first + more)
    tree = Frontier()
    for leaf in hashes[:first]:
        tree.append(leaf)
    peaks = [
        defined_root(hashes[part.number << part.level :][: 1 << part.level])
        for part in Range(0, first).subtrees
    ]
    again, other = Frontier(first, peaks), tree.copy()
    for leaf in hashes[first:]:
        again.append(leaf)
        other.append(leaf)
    assert again.root() == other.root() == defined_root(hashes)
    assert tree.root() == defined_root(hashes[:first])


@given(st.integers(1, SIZE_MAX), st.data())
def test_an_inclusion_proof_is_the_path_of_the_definition(size: int, data: st.DataObject) -> None:
    index, hashes = data.draw(st.integers(0, size - 1)), leaves(size)
    path = merkle.proof(merkle.inclusion_ranges(index, size), whole(hashes))
    assert path == defined_path(index, hashes)
    assert merkle.includes(index, size, hashes[index], path, defined_root(hashes))


@given(sizes, sizes)
def test_a_consistency_proof_is_that_of_the_definition(one: int, other: int) -> None:
    old, new = sorted((one, other))
    hashes = leaves(new)
    path = merkle.proof(merkle.consistency_ranges(old, new), whole(hashes))
    assert path == ([] if old == 0 else defined_subproof(old, hashes, True))
    roots = defined_root(hashes[:old]), defined_root(hashes)
    assert merkle.extends((old, new), roots, path)


@given(st.integers(1, SIZE_MAX), st.integers(1, 4), st.data())
def test_every_root_comes_out_of_the_subtrees_that_are_stored(
    size: int, kept_levels: int, data: st.DataObject
) -> None:
    hashes = leaves(size)
    kept = stored(hashes, kept_levels)
    index = data.draw(st.integers(0, size - 1))
    path = merkle.proof(
        merkle.inclusion_ranges(index, size),
        lambda part: merkle.assembled(part, kept, kept_levels),
    )
    assert path == defined_path(index, hashes)


@given(st.integers(1, SIZE_MAX), st.data())
def test_a_damaged_inclusion_proof_proves_nothing(size: int, data: st.DataObject) -> None:
    index, hashes = data.draw(st.integers(0, size - 1)), leaves(size)
    root, path = defined_root(hashes), defined_path(index, hashes)
    other = data.draw(st.integers(-1, size + 1))
    assume(other != index)
    assert not merkle.includes(other, size, hashes[index], path, root)
    assert not merkle.includes(index, size, merkle.leaf_hash(b"another"), path, root)
    assert not merkle.includes(index, size, hashes[index], [*path, root], root)
    assert not merkle.includes(index, size, hashes[index], path, flipped(root))
    assert not merkle.includes(index, 4 * size, hashes[index], path, root)
    if path:
        place = data.draw(st.integers(0, len(path) - 1))
        assert not merkle.includes(index, size, hashes[index], changed(path, place), root)
        assert not merkle.includes(index, size, hashes[index], path[:-1], root)
        short = [*path[:-1], path[-1][:-1]]
        assert not merkle.includes(index, size, hashes[index], short, root)


@given(st.integers(1, SIZE_MAX), st.integers(1, SIZE_MAX), st.data())
def test_a_damaged_consistency_proof_proves_nothing(
    one: int, other: int, data: st.DataObject
) -> None:
    old, new = sorted((one, other))
    assume(old < new)
    hashes = leaves(new)
    roots = defined_root(hashes[:old]), defined_root(hashes)
    path = defined_subproof(old, hashes, True)
    place = data.draw(st.integers(0, len(path) - 1))
    assert not merkle.extends((old, new), roots, changed(path, place))
    assert not merkle.extends((old, new), roots, path[:-1])
    assert not merkle.extends((old, new), roots, [*path, path[0]])
    assert not merkle.extends((old, new), (flipped(roots[0]), roots[1]), path)
    assert not merkle.extends((old, new), (roots[0], flipped(roots[1])), path)
    assert not merkle.extends((new, old), (roots[1], roots[0]), path)
    assert not merkle.extends((old, 4 * new), roots, path)
    assert not merkle.extends((old, new), roots, [])


def test_nothing_is_proven_of_an_empty_tree_but_that_it_was_empty() -> None:
    root = merkle.root(leaves(3))
    assert merkle.extends((0, 3), (EMPTY_ROOT, root), [])
    assert not merkle.extends((0, 3), (root, root), [])
    assert not merkle.extends((3, 3), (root, flipped(root)), [])
    assert not merkle.includes(0, 0, root, [], EMPTY_ROOT)


@pytest.mark.parametrize("wrong", [(-1, 3), (3, 3), (0, 0)])
def test_a_leaf_that_is_not_there_has_no_proof(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="has no leaf"):
        merkle.inclusion_ranges(*wrong)


@pytest.mark.parametrize("wrong", [(4, 3), (-1, 3)])
def test_a_smaller_tree_extends_no_larger_one(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="does not extend"):
        merkle.consistency_ranges(*wrong)


def test_a_frontier_is_not_made_of_half_its_peaks() -> None:
    with pytest.raises(ValueError, match="as many peaks"):
        Frontier(3, [EMPTY_ROOT])


def whole(hashes: list[bytes]) -> Callable[[Subtree], bytes]:
    """Roots of complete subtrees, by the definition."""
    return lambda part: defined_root(hashes[part.number << part.level :][: 1 << part.level])


def flipped(root: bytes) -> bytes:
    return bytes([root[0] ^ 1]) + root[1:]


def changed(path: list[bytes], place: int) -> list[bytes]:
    return [*path[:place], flipped(path[place]), *path[place + 1 :]]
