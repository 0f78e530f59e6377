package traffic

const victimEnv = "LASTHOP_TRAFFIC_VICTIM"

func victim() {}
