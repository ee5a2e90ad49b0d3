// Visits a page: opens folded parts and presses the buttons of charts in turn. Records errors in `data-bad` and
// its progress in `data-visited`.
(function () {
  const bad = [];
  const set = (name, what) => document.documentElement.setAttribute(name, what);
  const report = (what) => {
    bad.push(what);
    set("data-bad", bad.join(" | "));
  };
  window.addEventListener("error", (e) => report(e.message || "cannot load " + (e.target.src || e.target.href)), true);
  window.alert = (text) => report("alert: " + text);
  $(document).ajaxError((_, answer, request) => report(request.url + ": " + answer.status));
  // A tab draws its table when it opens.
  const table = (one) => $($(one).attr("data-bs-target") || $(one).attr("href")).find("table");
  const shown = (one) => !$(one).is("[data-bs-toggle=tab]") || table(one).toArray().every((t) => $.fn.dataTable.isDataTable(t));
  const later = (what) => setTimeout(what, 800);
  // Waits until all requests are answered.
  const quiet = (next, attempts, also = () => true) => later(() => {
    if (attempts > 0 && ($.active > 0 || !also())) return quiet(next, attempts - 1, also);
    next();
  });
  const press = (all) => {
    if (all.length === 0) return later(() => set("data-visited", "yes"));
    set("data-visited", `before ${all[0].outerHTML.slice(0, 200)}`);
    all[0].click();
    quiet(() => press(all.slice(1)), 10, () => shown(all[0]));
  };
  $(window).on("load", () => {
    const folded = $("#jobs_tabs [data-bs-toggle=tab], .accordion-button.collapsed");
    const buttons = $("#job_distribution_options a, #time_chart_options a");
    quiet(() => press([...folded, ...buttons]), 10);
  });
})();
