"""The models that these tests decode with are what they say."""


def test_greedy_texts_wander(tiny):
    texts, _ = tiny.greedy_without_cache(tiny.llama(), [[1], [2], [3]], 64)
    assert min(len(set(text)) for text in texts) > 10
