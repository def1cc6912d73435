"""`etude federate --split`: clients that hold the layers below a cut, and a server with the rest."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError

if TYPE_CHECKING:
    from etude.make.generate.model import Model
    from etude.world.fleet.federated import Clients


@dataclass(frozen=True, slots=True)
class Cut:
    split: str
    lora: int
    lora_cut: int
    server_system: str
    server_devices: int
    seq: int
    lengths: str

    @classmethod
    def read(
        cls, split: str, lora: int, lora_cut: int, server_system: str, server_devices: int, seq: int, lengths: str
    ) -> "Cut | None":  # fmt: skip
        """As given, with what is usual where nothing is; none where clients are whole."""
        of = {"--lora": lora, "--lora-cut": lora_cut, "--server-system": server_system,
              "--server-devices": server_devices, "--seq": seq, "--lengths": lengths}  # fmt: skip
        if not split:
            if given := [name for name, value in of.items() if value]:
                raise UsageError(f"{given[0]} applies only with --split", hint="--split auto")
            return None
        if not lora:
            raise UsageError("--split: the rank of the trained adapters is not given", hint="--lora 16")
        if lora_cut > lora:
            raise UsageError(f"--lora-cut: {lora_cut} is more than --lora {lora}", hint="--lora-cut 4")
        return cls(split, lora, lora_cut or lora, server_system or "dgx-h100", server_devices or 1, seq or 1024,
                   lengths)  # fmt: skip

    def planned(
        self, clients: "Clients", model: "Model", *, micro_batch: int, precision: str, steps: int, count: int,
        limit: float, seed: int,
    ) -> Any:  # fmt: skip
        from etude.machine import open_system
        from etude.world.fleet.federated import planned

        return planned(
            clients, model, self.split, rank=self.lora, cut_rank=self.lora_cut, system=open_system(self.server_system),
            devices=self.server_devices, micro_batch=micro_batch, seq=self.seq, lengths=self.lengths,
            width=2 if precision == "bf16" else 4, steps=steps, count=count, limit=limit, seed=seed,
        )  # fmt: skip

    def asked(self) -> dict[str, Any]:
        return asdict(self)


def split_rows(record: dict[str, Any]) -> dict[str, Any]:
    cuts = ", ".join(f"{n:,} after layer {cut}" for cut, n in record["cuts"].items())
    return {
        "cuts": cuts,
        "sent per step": f"{record['step_bytes'] / 1e6:,.2f} MB of activations and gradients",
        "adapters": f"{record['adapter_bytes'] / 1e6:,.2f} MB per client, in each direction per round",
        "server": f"{record['devices']:,} devices in use {record['load']:.1%}, "
        f"{record['wait_s']:,.2f} s waiting time per answer",
    }
