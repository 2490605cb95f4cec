/* Draws the curves of a report from the data in it, and answers its controls. */
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const charts = [...document.querySelectorAll("[data-chart]")].map((place) => {
    const { canBeLog, ...options } = data.charts[Number(place.dataset.chart)];
    const chart = new LineChart(place, { ...options, events: data.events, domain: data.domain });
    chart.canBeLog = canBeLog;
    return chart;
  });
  linkCharts(charts);

  const root = document.documentElement;
  const smoothing = document.getElementById("smoothing"), log = document.getElementById("log");
  const apply = () => {
    const weight = Number(smoothing.value);
    document.getElementById("smoothing-value").textContent = weight.toFixed(2);
    for (const chart of charts) chart.update({ smoothing: weight, log: log.checked && chart.canBeLog });
  };
  smoothing?.addEventListener("input", apply);
  log?.addEventListener("change", apply);
  document.getElementById("reset")?.addEventListener("click", () => charts[0]?.setRange(null));

  const setTheme = (theme) => {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    for (const chart of charts) chart.redraw();
  };
  const isDark = () => (root.dataset.theme
    ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  document.getElementById("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));

  let before;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    setTheme("light");
    for (const chart of charts) chart.paintNow();
  });
  addEventListener("afterprint", () => setTheme(before));
  if (smoothing) apply();
  root.dataset.isReady = "true";
})();
