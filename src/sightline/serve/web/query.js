// Image input: dropped, pasted or chosen. Its bytes are kept in this tab under a number.

import { $ } from "./dom.js";

const images = new Map(); // number in the address -> {file, name, url}
let last = 0;

/** The image of that number; undefined after a reload, since images are kept in memory only. */
export const imageOf = (number) => images.get(String(number));

/** Keep an image, and give its number. */
export function keep(file) {
  last += 1;
  images.set(String(last), { file, name: file.name || "pasted image", url: URL.createObjectURL(file) });
  return String(last);
}

/** Call take(file) for every image that a person drops, pastes or picks, refuse(sentence) for anything else. */
export function watchInputs(take, refuse) {
  const offer = (files) => {
    const image = [...files].find((file) => file.type.startsWith("image/"));
    if (image) take(image);
    else
      refuse(
        files.length
          ? `${files[0].name || "That"} is not an image.`
          : "No image found. Save the image first, then drop the file.",
      );
  };

  $("#file").addEventListener("change", (event) => {
    if (event.target.files.length) offer(event.target.files);
    event.target.value = ""; // so that the same file can be picked again
  });

  document.addEventListener("paste", (event) => {
    const { files } = event.clipboardData;
    if (files.length) {
      event.preventDefault();
      offer(files);
    } else if (!event.target.closest("input, textarea")) {
      refuse("The clipboard has no image.");
    }
  });

  const overlay = $("#dropping");
  let depth = 0; // the browser sends enter and leave for every element on the way
  const show = (change) => {
    depth = Math.max(0, change === 0 ? 0 : depth + change);
    overlay.hidden = depth === 0;
  };
  const carriesFile = (event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragenter", (event) => carriesFile(event) && show(1));
  document.addEventListener("dragleave", (event) => carriesFile(event) && show(-1));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    show(0);
    if (!document.querySelector("dialog[open]")) offer(event.dataTransfer.files);
  });
}
