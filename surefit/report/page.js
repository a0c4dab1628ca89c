document.addEventListener("DOMContentLoaded", () => {
  const tip = document.createElement("div");
  tip.id = "tip";
  document.body.append(tip);
  const show = (event) => {
    const over = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    tip.style.display = over ? "block" : "none";
    if (!over) return;
    tip.textContent = over.dataset.tip;
    const { offsetWidth: wide, offsetHeight: high } = tip;
    tip.style.left = Math.max(0, Math.min(event.clientX + 14, innerWidth - wide - 8)) + "px";
    tip.style.top = (event.clientY + 18 + high > innerHeight ? event.clientY - high - 10 : event.clientY + 18) + "px";
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
});
