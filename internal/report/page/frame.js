"use strict";
// A click on a mark of a picture, or an arrow key in a picture, shows the mark's title in the status line.
for (const picture of document.querySelectorAll(".picture")) {
  const marks = [...picture.querySelectorAll("rect")].filter((e) => e.querySelector("title"));
  const status = document.getElementById("selected");
  let at = -1;
  const show = (k) => {
    if (at >= 0) marks[at].classList.remove("now");
    at = k;
    marks[at].classList.add("now");
    status.textContent = marks[at].querySelector("title").textContent;
  };
  picture.addEventListener("click", (event) => {
    const k = marks.indexOf(event.target);
    if (k >= 0) show(k);
  });
  picture.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !marks.length) return;
    show((at + by + marks.length) % marks.length);
    event.preventDefault();
    event.stopPropagation();
  });
}
