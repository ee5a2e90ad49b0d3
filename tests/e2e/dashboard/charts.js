// Replaces the library with which the dashboard draws charts. Checks the data of each chart and writes it as text
// in place of the chart. A chart that is drawn again adds its new text.
const Highcharts = (function () {
  const settings = { colors: [] };

  function check(holds, what) {
    if (!holds) {
      throw new Error("chart: " + what);
    }
  }

  // Returns the ends of a range, or the only value.
  function values(point) {
    if (Array.isArray(point)) {
      return point;
    }
    return [point !== null && typeof point === "object" ? point.y : point];
  }

  // Returns the text that a formatter of the page gives for a point.
  function formatted(formatter, what, given) {
    const text = formatter ? formatter.call(given) : "";
    check(typeof text === "string" && !/\b(undefined|NaN|null)\b/.test(text), what + ": bad label " + text);
    return text;
  }

  class Chart {
    constructor(options) {
      this.options = options;
      this.title = options.title.text;
      this.place = document.getElementById(options.chart.renderTo);
      check(this.place, "no place " + options.chart.renderTo + " for " + this.title);
      this.place.textContent = "";
      this.series = options.series.map((one) => ({
        options: one,
        name: one.name,
        data: one.data.map((value) => {
          const point = { value };
          point.update = (value) => { point.value = value; };
          return point;
        }),
      }));
      this.redraw();
    }

    setTitle(title) {
      this.title = title.text;
    }

    redraw() {
      const lines = [this.title];
      for (const series of this.series) {
        check(series.data.length > 0, this.title + " without data of " + series.name);
        series.data.forEach((point, number) => lines.push(this.line(series, point.value, number)));
      }
      for (const line of lines) {
        this.place.append(Object.assign(document.createElement("p"), { innerHTML: line }));
      }
    }

    line(series, value, number) {
      const type = series.options.type || this.options.chart.type;
      const numbers = values(value);
      const where = `${this.title}, ${series.name} ${number}`;
      check(numbers.length === (type === "columnrange" ? 2 : 1), where + " for a " + type);
      check(numbers.every(Number.isFinite), where + " is " + JSON.stringify(value));
      check(type !== "columnrange" || numbers[0] <= numbers[1], where + " ends before it begins");
      check(type !== "pie" || numbers[0] >= 0, where + " is negative");

      const named = value.name !== undefined;
      const axis = [].concat(this.options.xAxis || [])[0];
      const name = named ? value.name : axis.categories[number];
      check(typeof name === "string" && name !== "", where + " has no name");
      const point = named ? value : { name, y: numbers[0] };
      const given = { point, series, x: name, y: point.y };
      const plot = (this.options.plotOptions || {})[type] || {};
      const label = formatted((plot.dataLabels || {}).formatter, where, given);
      const tip = formatted((this.options.tooltip || {}).formatter, where, given);
      return `${series.name}: ${name} = ${numbers.join(" to ")}<br>${label}<br>${tip}`;
    }
  }

  return {
    Chart,
    getOptions: () => settings,
    Color: (color) => {
      check(/^#[0-9a-f]{6}$/.test(color), "no color " + color);
      return { brighten: () => ({ get: () => color }) };
    },
  };
})();
