"""The parameters of a tower that reads pictures, named as Hugging Face does behind "model."."""

from collections.abc import Iterator

from tiny_llm_lab.types.computing.pictures import PictureConfig

TOWER = "visual."
PATCHES = f"{TOWER}patch_embed.proj.weight"


def tower_shapes(tower: PictureConfig, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Those of what reads pictures, for a model `hidden` wide."""
    width, inner = tower.hidden_size, tower.intermediate_size
    yield from _affine("patch_embed.proj", (width, 3 * tower.num_frames * tower.patch_size**2))
    yield "pos_embed.weight", (tower.num_positions, width)
    for layer in range(tower.num_layers):
        for name, shape in {
            "norm1": (width,),
            "attn.qkv": (3 * width, width),
            "attn.proj": (width, width),
            "norm2": (width,),
            "mlp.linear_fc1": (inner, width),
            "mlp.linear_fc2": (width, inner),
        }.items():
            yield from _affine(f"blocks.{layer}.{name}", shape)
    merged = width * tower.merge**2
    mergers = {"merger": width} | {
        f"deepstack_merger_list.{i}": merged for i in range(len(tower.deep_layers))
    }
    for name, norm in mergers.items():
        yield from _affine(f"{name}.norm", (norm,))
        yield from _affine(f"{name}.linear_fc1", (merged, merged))
        yield from _affine(f"{name}.linear_fc2", (hidden, merged))


def _affine(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


def patch_shape(tower: PictureConfig, has_colours_last: bool) -> tuple[int, ...]:
    """That of PATCHES in files: as transformers saves it, or as MLX does."""
    pixels = (tower.num_frames, tower.patch_size, tower.patch_size)
    return tower.hidden_size, *((*pixels, 3) if has_colours_last else (3, *pixels))
