// One bar of all blocks of the KV cache that are held, by owner.

import { blocksOf } from "./engine_state.js";
import { count, plural } from "./numbers.js";
import { colourOf, hatched } from "./theme.js";

const HEIGHT = 22;

/** Draw the blocks that are held. The bar is as wide as the most that were held at a time: `state.mostHeld`. */
export function drawBlocks(context, { state, theme, width }) {
  const blocks = blocksOf(state);
  const held = blocks.total - blocks.free;
  state.mostHeld = Math.max(state.mostHeld ?? 64, held);
  const scale = width / state.mostHeld;
  context.clearRect(0, 0, width, HEIGHT);
  context.fillStyle = theme.grid;
  context.fillRect(0, 0, width, HEIGHT);
  let x = 0;
  const draw = (size, fill) => {
    context.fillStyle = fill;
    context.fillRect(x, 0, Math.max(0, size * scale - 1), HEIGHT);
    x += size * scale;
  };
  for (const [request, size] of blocks.owners) draw(size, colourOf(theme, request));
  draw(blocks.cached, hatched(context, { ...theme, requests: [theme.muted] }, 0));
}

/** The same in words. */
export function blocksText(state) {
  const { owners, cached, saved, free, total, snapshots } = blocksOf(state);
  const states = snapshots ? `; ${plural(snapshots, "snapshot")} of states` : "";
  const shared = cached || saved ? `, ${count(cached)} from the prefix cache, ${count(saved)} saved by sharing` : "";
  const disk = state.lastStep?.disk ? `; ${count(state.lastStep.disk)} prompt tokens read from the disk so far` : "";
  const [read, hits] = state.lastStep?.pictures ?? [0, 0];
  const pictures = read + hits ? `; ${plural(read, "picture")} read, ${count(hits)} found` : "";
  return `${plural(total - free, "block")} held by ${plural(owners.length, "request")}${shared}; ${count(free)} of ${count(total)} free${states}${disk}${pictures}`;
}
