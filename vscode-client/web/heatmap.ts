/** A 2-D slice and an image, on a canvas that can be read with the arrow keys. */
import type { Picture, Slice } from '../src/tensorView/messages';
import { bytesOf, cellsOf, heatmapOf, number, spanOf } from './decode';

/** Small pictures are shown larger: cells of at most this size. */
const LARGEST_CELL = 24;
const SIDE = 480;

export function drawSlice(into: HTMLElement, slice: Slice): void {
  const [rows, columns] = slice.cells;
  const canvas = canvasOf(rows, columns, heatmapOf(slice));
  const cells = cellsOf(slice);
  const [low, high] = spanOf(cells);
  const status = document.createElement('p');
  status.className = 'status';
  status.setAttribute('role', 'status');
  const [down, across] = slice.step;
  const some = down > 1 || across > 1 ? ` Each cell stands for ${down} × ${across} elements.` : '';
  status.textContent = `From ${number(low)} (dark) to ${number(high)} (light); NaN is magenta, +Inf red, -Inf blue.${some}`;
  canvas.tabIndex = 0;
  canvas.setAttribute('aria-label', `Slice of ${slice.size[0]} rows and ${slice.size[1]} columns. The arrow keys read its cells.`);
  let [row, column] = [0, 0];
  const tell = (): void => {
    const value = cells[row * columns + column] ?? NaN;
    status.textContent = `[${row * down}, ${column * across}] = ${number(value)}`;
  };
  canvas.addEventListener('keydown', (event) => {
    const steps: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (step === undefined) return;
    row = Math.min(Math.max(row + step[0], 0), rows - 1);
    column = Math.min(Math.max(column + step[1], 0), columns - 1);
    tell();
    event.preventDefault();
  });
  canvas.addEventListener('mousemove', ({ offsetX, offsetY }) => {
    row = Math.min(Math.floor((offsetY / canvas.clientHeight) * rows), rows - 1);
    column = Math.min(Math.floor((offsetX / canvas.clientWidth) * columns), columns - 1);
    tell();
  });
  into.append(canvas, status);
}

export function drawImage(into: HTMLElement, picture: Picture): void {
  const [height, width] = picture.pixels;
  const canvas = canvasOf(height, width, bytesOf(picture.rgba));
  canvas.setAttribute('aria-label', `Image of ${picture.size[1]} × ${picture.size[0]} pixels`);
  into.append(canvas);
}

function canvasOf(height: number, width: number, pixels: Uint8ClampedArray<ArrayBuffer>): HTMLCanvasElement {
  const canvas = document.createElement('canvas');
  canvas.width = width;
  canvas.height = height;
  canvas.className = 'pixels';
  canvas.setAttribute('role', 'img');
  const scale = Math.max(1, Math.min(LARGEST_CELL, Math.floor(SIDE / Math.max(width, height))));
  canvas.style.width = `${width * scale}px`;
  canvas.style.height = `${height * scale}px`;
  canvas.getContext('2d')?.putImageData(new ImageData(pixels, width, height), 0, 0);
  return canvas;
}
