// Makes a picture of a page small: a PNG of 256 colours instead of 16 million.
"use strict";

const zlib = require("node:zlib");
const assert = require("node:assert/strict");

const SIGNATURE = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);

/** The chunks of a PNG: the type and the data of each. */
function* chunks(png) {
  let at = SIGNATURE.length;
  while (at < png.length) {
    const length = png.readUInt32BE(at);
    yield { type: png.toString("latin1", at + 4, at + 8), data: png.subarray(at + 8, at + 8 + length) };
    at += length + 12;
  }
}

/** The pixels of a PNG with 8 bits a channel, as rows of channels. */
function pixels(png) {
  const all = [...chunks(png)];
  const header = all[0].data;
  const [width, height, depth, kind] = [header.readUInt32BE(0), header.readUInt32BE(4), header[8], header[9]];
  const channels = { 2: 3, 6: 4 }[kind];
  assert.ok(depth === 8 && channels && header[12] === 0, "a picture as Chromium writes it");
  const raw = zlib.inflateSync(
    Buffer.concat(all.filter(({ type }) => type === "IDAT").map(({ data }) => data)),
  );
  const stride = width * channels;
  const out = Buffer.alloc(stride * height);
  for (let y = 0; y < height; y++) {
    const filter = raw[y * (stride + 1)];
    for (let x = 0; x < stride; x++) {
      const left = x >= channels ? out[y * stride + x - channels] : 0;
      const above = y > 0 ? out[(y - 1) * stride + x] : 0;
      const corner = x >= channels && y > 0 ? out[(y - 1) * stride + x - channels] : 0;
      const predicted = [0, left, above, (left + above) >> 1, paeth(left, above, corner)][filter];
      out[y * stride + x] = raw[y * (stride + 1) + 1 + x] + predicted;
    }
  }
  return { width, height, channels, out };
}

/** The neighbour that is nearest to a plane through all three. */
function paeth(left, above, corner) {
  const plane = left + above - corner;
  const [a, b, c] = [left, above, corner].map((one) => Math.abs(plane - one));
  if (a <= b && a <= c) return left;
  return b <= c ? above : corner;
}

function chunk(type, data) {
  const body = Buffer.concat([Buffer.from(type, "latin1"), data]);
  const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(data.length);
  sum.writeUInt32BE(zlib.crc32(body));
  return Buffer.concat([length, body, sum]);
}

/** The colours that occur most, and for each pixel the number of the nearest one. */
function reduce({ width, height, channels, out }) {
  const counts = new Map();
  const colour = (at) => (out[at] << 16) | (out[at + 1] << 8) | out[at + 2];
  for (let at = 0; at < out.length; at += channels) {
    counts.set(colour(at), (counts.get(colour(at)) ?? 0) + 1);
  }
  // Colours that differ by little stand for each other, or the shades of text would take all places.
  const palette = [];
  const distance = (a, b) =>
    ((a >> 16) - (b >> 16)) ** 2 + (((a >> 8) & 255) - ((b >> 8) & 255)) ** 2 + ((a & 255) - (b & 255)) ** 2;
  const byCount = [...counts].sort((a, b) => b[1] - a[1]).map(([one]) => one);
  for (const one of byCount) {
    if (palette.length === 256) break;
    if (palette.every((known) => distance(known, one) > 60)) palette.push(one);
  }
  const nearest = new Map();
  const index = Buffer.alloc(width * height);
  for (let nth = 0; nth < index.length; nth++) {
    const one = colour(nth * channels);
    if (!nearest.has(one)) {
      const near = palette.reduce((best, known) =>
        distance(known, one) < distance(best, one) ? known : best,
      );
      nearest.set(one, palette.indexOf(near));
    }
    index[nth] = nearest.get(one);
  }
  return { palette, index };
}

/** The PNG with 256 colours. */
module.exports = function smallPng(png) {
  const picture = pixels(png);
  const { width, height } = picture;
  const { palette, index } = reduce(picture);
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header.set([8, 3, 0, 0, 0], 8);
  const colours = Buffer.from(palette.flatMap((one) => [one >> 16, (one >> 8) & 255, one & 255]));
  const rows = Buffer.alloc((width + 1) * height);
  for (let y = 0; y < height; y++) index.copy(rows, y * (width + 1) + 1, y * width, (y + 1) * width);
  return Buffer.concat([
    SIGNATURE,
    chunk("IHDR", header),
    chunk("PLTE", colours),
    chunk("IDAT", zlib.deflateSync(rows, { level: 9 })),
    chunk("IEND", Buffer.alloc(0)),
  ]);
};
