FROM golang:1.26 AS build
ARG RELEASE
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.release=${RELEASE}" -o /lasthop ./cmd/lasthop

FROM scratch
COPY --from=build /lasthop /lasthop
ENTRYPOINT ["/lasthop"]
