// What is wrong with the layout of a page, one sentence each.
() => {
    const faults = [];
    const say = (what, element) => faults.push(`${what}: <${element.tagName} class="${element.className}"> ` +
        (element.textContent || "").trim().slice(0, 60));
    const isClipped = (element) => {
        for (let up = element; up; up = up.parentElement)
            if (getComputedStyle(up).clipPath !== "none" || (up !== element && getComputedStyle(up).overflowX === "auto")
                || up.classList.contains("skip")) return true;
        return false;
    };
    const all = [...document.body.querySelectorAll("*")].filter((one) => one.checkVisibility() && !isClipped(one));
    if (document.documentElement.scrollWidth > innerWidth)
        faults.push(`the page is ${document.documentElement.scrollWidth} wide, the window ${innerWidth}`);
    for (const one of all) {
        const box = one.getBoundingClientRect();
        if (box.width && (box.left < -1 || box.right > innerWidth + 1)) say(`from ${box.left} to ${box.right}`, one);
    }
    for (const one of document.querySelectorAll("button:not(.link), select, .pick, input[type=text], input[type=number]")) {
        const { height } = one.getBoundingClientRect(); // for a finger
        if (innerWidth < 400 && one.checkVisibility() && height < (one.matches(".alike, .chip") ? 30 : 44)) say(`${height} high`, one);
    }
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].map((part) => part / 255);
    };
    const over = ([r, g, b, a], below) => [r, g, b].map((part, at) => a * part + (1 - a) * below[at]);
    const ground = (element) => {
        if (!element) return [1, 1, 1];
        const own = rgba(getComputedStyle(element).backgroundColor);
        return own[3] === 1 ? own.slice(0, 3) : over(own, ground(element.parentElement));
    };
    const light = (colour) => colour.map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    const opacity = (element) => element ? Number(getComputedStyle(element).opacity) * opacity(element.parentElement) : 1;
    for (const one of all) {
        for (const text of [...one.childNodes].filter((node) => node.nodeType === 3 && node.data.trim())) {
            for (const word of text.data.matchAll(/[^\s\/–-]+/g)) {
                const range = document.createRange();
                range.setStart(text, word.index);
                range.setEnd(text, word.index + word[0].length);
                if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1)
                    say(`the word ${word[0]} is broken`, one);
            }
            if (one.closest(":disabled")) continue;
            const below = ground(one), style = getComputedStyle(one);
            const own = rgba(style.color);
            own[3] *= opacity(one);
            const [low, high] = [light(over(own, below)), light(below)].sort((a, b) => a - b);
            const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
            const contrast = (high + 0.05) / (low + 0.05);
            const isMark = one.ariaHidden === "true"; // a drawing beside a word
            if (contrast < (isLarge || isMark ? 3 : 4.5)) say(`contrast ${contrast.toFixed(2)}`, one);
        }
    }
    return faults;
}
