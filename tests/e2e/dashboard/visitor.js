// What a visitor does: opens all that is folded and presses the buttons of charts, one after the other, and
// complains of what does not work. Says when it is through.
(function () {
  const bad = [];
  const say = (name, what) => document.documentElement.setAttribute(name, what);
  const note = (what) => {
    bad.push(what);
    say("data-bad", bad.join(" | "));
  };
  window.addEventListener("error", (e) => note(e.message || "cannot load " + (e.target.src || e.target.href)), true);
  window.alert = (text) => note("alert: " + text);
  $(document).ajaxError((_, answer, request) => note(request.url + ": " + answer.status));
  // A tab draws its table when it is opened.
  const table = (one) => $($(one).attr("data-bs-target") || $(one).attr("href")).find("table");
  const shown = (one) => !$(one).is("[data-bs-toggle=tab]") || table(one).toArray().every((t) => $.fn.dataTable.isDataTable(t));
  const later = (what) => setTimeout(what, 800);
  // What pages and buttons ask for is to be there.
  const quiet = (next, tries, also = () => true) => later(() => {
    if (tries > 0 && ($.active > 0 || !also())) return quiet(next, tries - 1, also);
    next();
  });
  const press = (all) => {
    if (all.length === 0) return later(() => say("data-visited", "yes"));
    say("data-visited", `before ${all[0].outerHTML.slice(0, 200)}`);
    all[0].click();
    quiet(() => press(all.slice(1)), 10, () => shown(all[0]));
  };
  $(window).on("load", () => {
    const folded = $("#jobs_tabs [data-bs-toggle=tab], .accordion-button.collapsed");
    const buttons = $("#job_distribution_options a, #time_chart_options a");
    quiet(() => press([...folded, ...buttons]), 10);
  });
})();
