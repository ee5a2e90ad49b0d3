//! Plain requests through a forward proxy, which expects an absolute address instead of a path.
//!
//! `ureq` supports only tunnels. So the caller passes `/http://host/file` as the path, and this transport
//! removes the slash.

use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, NextTimeout, TcpConnector, Transport,
};

use super::pace::Limited;

/// Start of a request in absolute form, with the slash.
const PREFIX: &[u8] = b"GET /http://";
/// Position of that slash.
const SLASH: usize = 4;

/// Returns a connector for plain connections in absolute form.
pub(super) fn connector() -> impl Connector {
    <TcpConnector as Connector>::chain(TcpConnector::default(), Limited).chain(AbsoluteForm)
}

#[derive(Debug)]
struct AbsoluteForm;

#[derive(Debug)]
struct Connection<T>(T);

impl<In: Transport> Connector<In> for AbsoluteForm {
    type Out = Connection<In>;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        Ok(chained.map(Connection))
    }
}

impl<T: Transport> Transport for Connection<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.0.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let output = self.0.buffers().output();
        let amount = if output[..amount].starts_with(PREFIX) {
            output.copy_within(SLASH + 1..amount, SLASH);
            amount - 1
        } else {
            amount
        };
        self.0.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.0.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.0.is_open()
    }
}
